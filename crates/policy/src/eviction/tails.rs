//! Tails before heads: turns a choice of places in a queue into a choice of blocks.

use super::Candidate;
use super::word::{Word, deepest_first};

/// Replaces each chosen candidate by the deepest block of its instant that is not yet taken. A
/// chosen candidate that stays gets the place of an unchosen one that leaves. `words` are the
/// candidates' words as the policy left them. Returns one candidate for each chosen one.
///
/// Takes time linear in the candidates, times the logarithm of the number of chosen instants.
pub(super) fn tails_first(candidates: &[Candidate], words: &mut [u64], chosen: &[usize]) -> Vec<usize> {
    let instant = |words: &[u64], index: usize| Word(words[index]).touched();
    let mut instants: Vec<u64> = chosen.iter().map(|&index| instant(words, index)).collect();
    instants.sort_unstable();
    instants.dedup();

    // Group all blocks of the chosen instants.
    let group_of = |words: &[u64], index: usize| instants.binary_search(&instant(words, index)).ok();
    let groups: Vec<Option<u32>> =
        (0..words.len()).map(|index| group_of(words, index).map(|group| group as u32)).collect();
    let mut starts = vec![0; instants.len() + 1];
    groups.iter().flatten().for_each(|&group| starts[group as usize + 1] += 1);
    if starts.iter().sum::<usize>() == instants.len() {
        // Each chosen instant has a single block.
        return chosen.to_vec();
    }
    for group in 0..instants.len() {
        starts[group + 1] += starts[group];
    }
    let mut members = vec![0; starts[instants.len()]];
    let mut filled = starts.clone();
    for (index, group) in groups.iter().enumerate() {
        let Some(group) = *group else { continue };
        members[filled[group as usize]] = index;
        filled[group as usize] += 1;
    }

    let mut is_chosen = vec![false; words.len()];
    let mut counts = vec![0; instants.len()];
    for &index in chosen {
        is_chosen[index] = true;
        counts[groups[index].expect("a chosen instant") as usize] += 1;
    }
    for (group, &count) in counts.iter().enumerate() {
        let members = &mut members[starts[group]..starts[group + 1]];
        let (leaving, staying) = deepest(candidates, members, count);
        let displaced = staying.iter().filter(|&&index| is_chosen[index]);
        let vacated = leaving.iter().filter(|&&index| !is_chosen[index]);
        for (&to, &from) in displaced.zip(vacated) {
            words[to] = words[from];
        }
    }
    let mut next = starts;
    let mut take = |&index: &usize| {
        let group = groups[index].expect("a chosen instant") as usize;
        next[group] += 1;
        members[next[group] - 1]
    };
    chosen.iter().map(&mut take).collect()
}

/// Splits off the `count` deepest members, in order of eviction.
fn deepest<'a>(candidates: &[Candidate], members: &'a mut [usize], count: usize) -> (&'a [usize], &'a [usize]) {
    let key = |&index: &usize| deepest_first(&candidates[index]);
    if count < members.len() {
        members.select_nth_unstable_by_key(count, key);
    }
    let (leaving, staying) = members.split_at_mut(count);
    leaving.sort_unstable_by_key(key);
    (leaving, staying)
}

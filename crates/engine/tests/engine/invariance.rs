//! Logits have the same bits for all batches, chunks, block sources and thread counts.

use cenote_engine::checkpoint::Checkpoint;
use cenote_engine::config::ModelConfig;
use cenote_engine::kernels::ElementType;
use cenote_engine::kv::KvArena;
use cenote_engine::llama::{Llama, LogitsOf, SeqChunk};
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::LazyLock;

const VOCAB: u32 = 304;
const BLOCK: usize = 16;
const MAX_TOKENS: usize = 70;
const BLOCKS: usize = MAX_TOKENS.div_ceil(BLOCK);

fn load(element: ElementType) -> Llama {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gqa-untied-llama3");
    let config = ModelConfig::load(&dir).unwrap();
    Llama::load(config, &mut Checkpoint::open(&dir).unwrap(), element).unwrap()
}

static MODELS: LazyLock<[Llama; 2]> = LazyLock::new(|| [load(ElementType::F32), load(ElementType::Bf16)]);

/// Block table of sequence `index`. Tables interleave, so other sequences' blocks lie between its
/// own.
fn table(index: usize, sequences: usize) -> Vec<u32> {
    (0..BLOCKS).map(|block| (block * sequences + index) as u32).collect()
}

fn arena(model: &Llama, element: ElementType, sequences: usize) -> KvArena {
    KvArena::new(model.kv_layout(BLOCK, element), sequences * BLOCKS)
}

/// The definition: logits of every token of one sequence, computed alone and at once.
fn alone(model: &Llama, element: ElementType, tokens: &[u32]) -> Vec<f32> {
    let block_table = table(0, 1);
    let chunk = SeqChunk { tokens, before: &[], start_position: 0, block_table: &block_table, logits: LogitsOf::All };
    model.forward(&[chunk], &mut arena(model, element, 1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Sequences advance by random chunks in common batches; `cuts` gives the chunk lengths.
    #[test]
    fn logits_do_not_depend_on_batches_and_chunks(
        which in 0_usize..2,
        sequences in prop::collection::vec(prop::collection::vec(0..VOCAB, 1..MAX_TOKENS), 1..5),
        cuts in prop::collection::vec(0_usize..40, 1..12),
        threads in 1_usize..4,
    ) {
        let (model, element) = (&MODELS[which], [ElementType::F32, ElementType::Bf16][which]);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let tables: Vec<Vec<u32>> = (0..sequences.len()).map(|index| table(index, sequences.len())).collect();
        let mut kv = arena(model, element, sequences.len());
        let mut done = vec![0; sequences.len()];
        let mut logits = vec![Vec::new(); sequences.len()];
        let mut cuts = cuts.into_iter().cycle();
        while done.iter().zip(&sequences).any(|(done, tokens)| *done < tokens.len()) {
            let mut batch = Vec::new();
            let mut members = Vec::new();
            for (index, tokens) in sequences.iter().enumerate() {
                let until = (done[index] + cuts.next().unwrap()).min(tokens.len());
                if until > done[index] {
                    batch.push(SeqChunk {
                        tokens: &tokens[done[index]..until],
                        before: &tokens[..done[index]],
                        start_position: done[index],
                        block_table: &tables[index],
                        logits: LogitsOf::All,
                    });
                    members.push((index, until));
                }
            }
            if batch.is_empty() {
                // All cuts were zero: advance by one token each, so that the loop ends.
                cuts = vec![1].into_iter().cycle();
                continue;
            }
            let out = pool.install(|| model.forward(&batch, &mut kv));
            let mut rows = out.chunks_exact(VOCAB as usize);
            for (index, until) in members {
                rows.by_ref().take(until - done[index]).for_each(|row| logits[index].extend_from_slice(row));
                done[index] = until;
            }
        }
        for (tokens, got) in sequences.iter().zip(&logits) {
            let want = alone(model, element, tokens);
            let equal = want.len() == got.len() && want.iter().zip(got).all(|(a, b)| a.to_bits() == b.to_bits());
            prop_assert!(equal, "{element}: logits of {} tokens differ from those computed alone", tokens.len());
        }
    }

    /// Pages copied into other blocks of another arena, as by a store, continue with the same bits.
    #[test]
    fn logits_do_not_depend_on_copied_pages(which in 0_usize..2, tokens in prop::collection::vec(0..VOCAB, 17..MAX_TOKENS)) {
        let (model, element) = (&MODELS[which], [ElementType::F32, ElementType::Bf16][which]);
        let want = alone(model, element, &tokens);
        let (from, to) = (table(0, 1), table(1, 3));
        let (mut cold, mut warm) = (arena(model, element, 1), arena(model, element, 3));
        let chunk = SeqChunk { tokens: &tokens, before: &[], start_position: 0, block_table: &from, logits: LogitsOf::Nothing };
        prop_assert!(model.forward(&[chunk], &mut cold).is_empty());
        let cached = (tokens.len() - 1) / BLOCK;
        for block in 0..cached {
            for (target, source) in warm.pages_mut(to[block]).into_iter().zip(cold.pages(from[block])) {
                target.copy_from_slice(source);
            }
        }
        let start_position = cached * BLOCK;
        let chunk = SeqChunk { tokens: &tokens[start_position..], before: &[], start_position, block_table: &to, logits: LogitsOf::All };
        let got = model.forward(&[chunk], &mut warm);
        prop_assert_eq!(&want[start_position * VOCAB as usize..], &got[..]);
    }
}

//! Changes of a region's bytes by an input.

use super::format::{Area, LINE, Map, SUPERBLOCK_LINES, check_word, superblock_check};
use super::input::Input;
use cenote_mem::{Fabric, Offset};

/// One line to change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    /// Offset of the line.
    at: u64,
    what: What,
    /// Whether to make its check word right, so that code after the check is reached.
    sealed: bool,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Set {
        word: usize,
        value: u64,
    },
    Xor {
        word: usize,
        value: u64,
    },
    /// All words, from this seed.
    Noise(u64),
    Zero,
    /// A copy of another line, of any kind.
    CopyOf(u64),
    /// The object row names another block, with a matching descriptor.
    Rename(u64),
}

/// The areas that an input changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    /// All but the superblock, small areas as often as large ones.
    Control,
    /// The superblock as often as all other areas together.
    Superblock,
}

impl Change {
    pub fn draw(input: &mut Input<'_>, map: &Map, aim: Aim) -> Self {
        let area = match aim {
            Aim::Superblock if input.chance(128) => Area::Superblock,
            Aim::Superblock | Aim::Control => map.existing()[1 + input.below(map.existing().len() as u64 - 1) as usize],
        };
        let at = draw_line(input, map, area);
        let kind = input.byte();
        let what = match kind % 8 {
            0 | 1 => draw_field(input, map, area),
            2 => What::Set { word: input.below(8) as usize, value: draw_value(input, map) },
            3 | 4 => What::Xor { word: input.below(8) as usize, value: draw_value(input, map) },
            5 => What::Noise(input.word()),
            6 => What::Zero,
            _ => {
                // Mostly a line of the same kind, which is valid in another place.
                let source = if input.chance(200) {
                    area
                } else {
                    let existing = map.existing();
                    existing[input.below(existing.len() as u64) as usize]
                };
                What::CopyOf(draw_line(input, map, source))
            }
        };
        Self { at, what, sealed: kind < 192 }
    }

    /// A line with another word and a right check word.
    #[cfg(test)]
    pub const fn field(at: u64, word: usize, value: u64) -> Self {
        Self { at, what: What::Set { word, value }, sealed: true }
    }

    /// An object row that names another block.
    #[cfg(test)]
    pub const fn rename(at: u64, block: u64) -> Self {
        Self { at, what: What::Rename(block), sealed: true }
    }

    pub fn apply<F: Fabric>(&self, fabric: &F, map: &Map) {
        let mut words = fabric.load_line(self.at);
        match self.what {
            What::Set { word, value } => words[word] = value,
            What::Xor { word, value } => words[word] ^= value,
            What::Noise(seed) => {
                let mut prng = cenote_base::prng::Prng::new(seed);
                words = std::array::from_fn(|_| prng.next_u64());
            }
            What::Zero => words = [0; 8],
            What::CopyOf(source) => words = fabric.load_line(source),
            What::Rename(block) => {
                let (start, lines) = map.area(Area::Descriptors);
                let (source, target) = (words[2].wrapping_sub(1), start + block * LINE);
                if source < lines {
                    let mut descriptor = fabric.load_line(start + source * LINE);
                    descriptor[7] = check_word(&descriptor, target, map.salt);
                    fabric.publish_line(target, &descriptor);
                }
                words[2] = block + 1;
            }
        }
        let area = map.area_at(self.at);
        if self.sealed && area.is_some_and(Area::is_checked) && words != [0; 8] {
            words[7] = check_word(&words, self.at, map.salt);
        }
        fabric.publish_line(self.at, &words);
        if self.sealed && area == Some(Area::Superblock) {
            seal_superblock(fabric);
        }
    }
}

/// Makes the superblock's check word right.
pub(crate) fn seal_superblock<F: Fabric>(fabric: &F) {
    fabric.store(Offset::new(23 * 8), superblock_check(&superblock_words(fabric)));
    fabric.publish(&[128]);
}

pub(crate) fn superblock_words<F: Fabric>(fabric: &F) -> [u64; 24] {
    std::array::from_fn(|word| fabric.load(Offset::new(word as u64 * 8)))
}

fn draw_line(input: &mut Input<'_>, map: &Map, area: Area) -> u64 {
    let (start, lines) = map.area(area);
    let lines = if area == Area::Superblock { SUPERBLOCK_LINES } else { lines };
    // The used part is at the start of most areas.
    let line = if input.chance(160) { u64::from(input.byte()) % lines } else { input.below(lines) };
    start + line * LINE
}

/// A field of the area's lines, with a plausible number.
fn draw_field(input: &mut Input<'_>, map: &Map, area: Area) -> What {
    let block = |input: &mut Input<'_>| input.below(map.descriptors);
    let (word, value) = match (area, input.byte() % 4) {
        (Area::Hosts | Area::Workers, choice) => (usize::from(choice), input.below(7)),
        (Area::Marks, _) => (input.below(map.hosts) as usize, input.below(5)),
        (Area::Hazards, 0) => (7, input.below(3)),
        (Area::Hazards, _) => (input.below(7) as usize, (block(input) + 1) | input.below(8) << 40),
        (Area::Locks, choice) => (usize::from(choice), input.below(8)),
        (Area::Records, 0) => (3, input.below(20) | input.below(4) << 8),
        (Area::Records, _) => (0, input.below(200)),
        (Area::Events, 0) => (0, input.below(200)),
        (Area::Events, 1) => (5, input.below(5) | input.below(3) << 8 | block(input) << 24),
        (Area::Events, _) => (6, input.below(6)),
        (Area::Names, _) => (input.below(8) as usize, input.below(200)),
        (Area::Namespaces, 0) => (0, input.below(1 << 20)),
        (Area::Usage, _) => (input.below(8) as usize, input.below(1 << 20)),
        (Area::Namespaces, _) => (4, LINE * input.below(300)),
        (Area::Objects, 0) => (3, input.below(70_000)),
        (Area::Objects, 1) => (4, input.below(8)),
        (Area::Objects, 2) => (5, map.area(Area::Data).0 + LINE * input.below(1 << 12)),
        (Area::Objects, _) => return What::Rename(block(input)),
        (Area::Opened, 0) => (4, input.below(5)),
        (Area::Opened, choice) => (usize::from(choice), input.word()),
        (Area::Demands, choice) => (usize::from(choice), input.below(1 << 12)),
        (Area::Hits, _) => (input.below(8) as usize, block(input) | input.below(4) << 40),
        (Area::Offers, _) => (input.below(8) as usize, input.below(map.chunks + 2) | input.below(1 << 12) << 32),
        (Area::Recency, _) => (input.below(8) as usize, input.below(1 << 12)),
        (Area::GivenLocks, _) => (input.below(8) as usize, input.word()),
        (Area::Pieces, _) => return What::Xor { word: input.below(8) as usize, value: input.word() },
        (Area::Chunks, 0) => (0, input.below(map.hosts + 2)),
        (Area::Chunks, 1) => (1, input.below(4)),
        (Area::Chunks, 3) => (3, input.below(8) | input.below(3) << 32),
        (Area::Chunks, _) => (2, [1 << 10, 4160, 4 << 10, 16 << 10, 64 << 10, 64][input.below(6) as usize]),
        (Area::Descriptors, 0) => (3, input.below(300) | (map.area(Area::Data).0 / LINE + input.below(1 << 14)) << 24),
        (Area::Descriptors, _) => (0, input.below(5) | input.below(6) << 16),
        (Area::Buckets, 0) => (7, input.below(3)),
        (Area::Buckets, _) => return What::Xor { word: input.below(7) as usize, value: input.below(1 << 10) },
        (Area::Superblock, 0) => (6, input.below(65) | input.below(1 << 11) << 8 | input.below(1 << 11) << 24),
        (Area::Superblock, 1) => (5, 1 << input.below(24)),
        (Area::Superblock, 2) => (4, 1 << (16 + input.below(14))),
        (Area::Superblock, _) => (3, input.below(1 << 21)),
        (Area::Data, _) => (input.below(8) as usize, input.word()),
        (Area::Plain, choice) => (usize::from(choice), block(input) + 1),
    };
    What::Set { word, value }
}

/// Numbers that often break code, more often than chance would draw them.
fn draw_value(input: &mut Input<'_>, map: &Map) -> u64 {
    let (data, data_lines) = map.area(Area::Data);
    match input.byte() % 16 {
        0 => u64::from(input.byte()),
        1 => u64::MAX - u64::from(input.byte()),
        2 => 1 << (input.byte() % 64),
        3 => (1_u64 << (input.byte() % 64)).wrapping_sub(1),
        // A block plus one, with or without high bits: an entry, a pin, an object's block.
        4 => input.below(map.descriptors + 3) | u64::from(input.byte()) << 40,
        // A length and an offset, as in descriptors.
        5 => u64::from(input.byte()) | (data / LINE + input.below(data_lines + 2)) << 24,
        6 => 0xff_ffff | (input.below(data_lines + 2)) << 24,
        // Slot sizes.
        7 => LINE * (1 + input.below(1100)),
        // A state and a generation.
        8 => u64::from(input.byte() % 5) | input.below(1 << 16) << 16,
        9 => u64::from(input.byte() % 5) | u64::MAX << 16,
        10 => 1 + input.below(map.hosts + 2),
        11 => input.below(map.chunks + 2),
        12 => input.below(1 << 16),
        13 => input.below(1 << 32),
        _ => input.word(),
    }
}

//! A second implementation of `docs/internals/format.md`: offsets of areas and check words of
//! lines. Written from the document and not from the pool's code, so that a test of one tests the
//! other.

/// Bytes of a line.
pub(crate) const LINE: u64 = 64;
/// Lines of the superblock with content.
pub(crate) const SUPERBLOCK_LINES: u64 = 3;

/// The areas of a region, in the order of their offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    Superblock,
    Hosts,
    Marks,
    Workers,
    Hazards,
    Locks,
    Records,
    Events,
    Namespaces,
    Usage,
    Objects,
    GivenLocks,
    Opened,
    Demands,
    Hits,
    Offers,
    Chunks,
    Descriptors,
    Pieces,
    Recency,
    Names,
    Buckets,
    Plain,
    Data,
}

impl Area {
    pub const ALL: [Self; 24] = [
        Self::Superblock,
        Self::Hosts,
        Self::Marks,
        Self::Workers,
        Self::Hazards,
        Self::Locks,
        Self::Records,
        Self::Events,
        Self::Namespaces,
        Self::Usage,
        Self::Objects,
        Self::GivenLocks,
        Self::Opened,
        Self::Demands,
        Self::Hits,
        Self::Offers,
        Self::Chunks,
        Self::Descriptors,
        Self::Pieces,
        Self::Recency,
        Self::Names,
        Self::Buckets,
        Self::Plain,
        Self::Data,
    ];

    /// Whether the last word of the area's lines is a check word.
    pub const fn is_checked(self) -> bool {
        matches!(
            self,
            Self::Hosts
                | Self::Workers
                | Self::Records
                | Self::Events
                | Self::Opened
                | Self::Demands
                | Self::Namespaces
                | Self::Objects
                | Self::Chunks
                | Self::Descriptors
        )
    }
}

/// Facts of a superblock that determine offsets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map {
    /// First byte and number of lines of each area.
    areas: [(u64, u64); Area::ALL.len()],
    pub chunks: u64,
    pub descriptors: u64,
    pub hosts: u64,
    pub salt: u64,
}

impl Map {
    /// `words` are those of a valid superblock.
    pub fn of(words: &[u64; 24]) -> Self {
        let (region_bytes, chunk_bytes, block_bytes_min) = (words[3], words[4], words[5]);
        let with = |chunks| Self::with_chunks(words, chunks, chunks * (chunk_bytes / block_bytes_min));
        let fits = |chunks| {
            let (data, lines) = with(chunks).area(Area::Data);
            data + lines * LINE <= region_bytes
        };
        // Steps of halved length, up from zero chunks.
        let steps = (0..u64::BITS).rev().map(|bit| 1 << bit).filter(|step| *step <= region_bytes / chunk_bytes);
        let chunks = steps.fold(0, |chunks, step| if fits(chunks + step) { chunks + step } else { chunks });
        assert!(chunks > 0, "a sound superblock leaves room");
        with(chunks)
    }

    fn with_chunks(words: &[u64; 24], chunks: u64, descriptors: u64) -> Self {
        let chunk_bytes = words[4];
        let (hosts, workers, hazards) = (words[6] & 0xff, words[6] >> 8 & 0xffff, words[6] >> 24 & 0xffff);
        let buckets = (2 * descriptors).div_ceil(7).next_power_of_two().max(64);
        let (records, events) = (words[6] >> 40 & 0xffff, words[16]);
        let names = if events > 0 { chunks * (16 * (descriptors / chunks.max(1))).div_ceil(LINE) } else { 0 };
        let is_plain = words[11] >> 24 & 0xff == 1;
        let if_shared = |lines: u64| if hosts > 1 && !is_plain { lines } else { 0 };
        let per_chunk = descriptors / chunks.max(1);
        let lines_of_lock = if words[11] >> 8 & 0xff == 1 { 2 } else { 1 };
        let lines = [
            64,
            hosts,
            8 * hosts,
            hosts * workers,
            hosts * workers * hazards,
            hosts * 1098 * lines_of_lock,
            hosts * records,
            hosts * events,
            3 * (words[7] >> 16 & 0xffff),
            hosts * 256 / 8,
            1024 * 2,
            1024 / 512,
            hosts * workers,
            hosts,
            if_shared(hosts * (descriptors / 64).clamp(16, 8192)),
            if_shared(hosts * chunks.min(1024).div_ceil(8)),
            chunks,
            descriptors,
            (8 * descriptors).div_ceil(LINE),
            if_shared(chunks * (8 * per_chunk).div_ceil(LINE)),
            names,
            buckets,
            if is_plain { descriptors + 1 } else { 0 },
            chunks * chunk_bytes / LINE,
        ];
        let mut end = 0_u64;
        let areas = std::array::from_fn(|index| {
            let align = if Area::ALL[index] == Area::Data { chunk_bytes.min(2 << 20) } else { 4096 };
            let start = end.next_multiple_of(align);
            end = start + lines[index] * LINE;
            (start, lines[index])
        });
        Self { areas, chunks, descriptors, hosts, salt: words[8] ^ words[9].rotate_left(17) }
    }

    /// First byte and number of lines.
    pub const fn area(&self, area: Area) -> (u64, u64) {
        self.areas[area as usize]
    }

    /// The areas that consist of lines, in order.
    pub fn existing(&self) -> Vec<Area> {
        Area::ALL.into_iter().filter(|&area| self.area(area).1 > 0).collect()
    }

    /// The area of the line at `at`; `None`: it is between two areas.
    pub fn area_at(&self, at: u64) -> Option<Area> {
        Area::ALL.into_iter().find(|&area| {
            let (start, lines) = self.area(area);
            (start..start + lines * LINE).contains(&at)
        })
    }
}

/// The check word of a line at `offset`.
pub(crate) fn check_word(words: &[u64; 8], offset: u64, salt: u64) -> u64 {
    let mut s = salt ^ offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for w in &words[..7] {
        s = (s ^ w).wrapping_mul(0xd6e8_feb8_6659_fd93);
        s ^= s >> 32;
    }
    s = s.wrapping_mul(0xd6e8_feb8_6659_fd93);
    (s ^ (s >> 29)) | 1
}

/// The check word of a superblock.
pub(crate) fn superblock_check(words: &[u64; 24]) -> u64 {
    words[..23].iter().fold(0x243f_6a88_85a3_08d3, |s, w| {
        let s = (s ^ w).wrapping_mul(0xd6e8_feb8_6659_fd93);
        s ^ (s >> 32)
    })
}

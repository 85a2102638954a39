//! Times encoding and decoding of pages on one core, alternating with copies of as many bytes of
//! pages.

use cenote_base::prng::Prng;
use cenote_codec::profile::curve_of;
use cenote_codec::{
    Bases, Basis, Channels, CodecId, Codecs, Declined, DecodeError, Element, Frame, GroupCodec, Groups, Layout, Level,
    Oaken, Order, Page, PageCodec, PageKind, PageMut, Prism, Profile, QPack, QPackZ, Raw, Shape, Side, SideProfile,
    SpecKv, SpecKvMode, Thresholds, at_level, encode,
};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const HEADS: u16 = 8;
const DIM: u16 = 128;
const PROFILE: u32 = 1;
/// Steps of QPack in standard deviations of a channel; they give about four bits per value.
const QPACK_STEP: f32 = 0.37;
/// Deviations of the first and the last component of Prism's pages, in steps; they give about two bits
/// per value.
const COMPONENTS: [f64; 2] = [22.0, 0.022];
/// The position of Prism's pages: no token is the first of its sequence.
const POSITION: u32 = 4096;

/// Different pages; larger sets repeat them.
pub struct Sample {
    /// Alternating K and V, as in the reference engine.
    pages: Vec<(PageKind, Vec<u8>)>,
    channels: [Channels; 2],
}

/// Approximately normal: mean 0, deviation 1.
fn bell(prng: &mut Prng) -> f32 {
    let sum: f64 = (0..6).map(|_| prng.next_f64()).sum();
    ((sum - 3.0) * std::f64::consts::SQRT_2) as f32
}

impl Sample {
    /// Pages of one layer: each channel has its own scale, and some channels of K are far from
    /// zero.
    pub fn new(element: Element, tokens: u16, count: usize) -> Self {
        let shape = Shape { heads: HEADS, tokens, dim: DIM };
        let mut prng = Prng::new(0xc0dec);
        let channels = [Side::K, Side::V].map(|side| {
            let scales: Vec<f32> = (0..shape.token_values()).map(|_| (0.6 * bell(&mut prng)).exp()).collect();
            let offset = |prng: &mut Prng| if side == Side::K && prng.below(16) == 0 { 8.0 * bell(prng) } else { 0.0 };
            let means = scales.iter().map(|_| offset(&mut prng)).collect();
            Channels { means, steps: scales.iter().map(|scale| scale * QPACK_STEP).collect() }
        });
        let page = |at: usize| {
            let (side, order) = [(Side::K, Order::KeyPanels), (Side::V, Order::ValuePanels)][at % 2];
            let kind = PageKind { shape, element, layout: Layout { order, capacity: tokens }, side, layer: 0 };
            let mut bytes = vec![0; kind.bytes()];
            let mut page = PageMut::new(kind, &mut bytes);
            let known = &channels[side as usize];
            let mut values = vec![0.0; shape.head_values()];
            for head in 0..usize::from(HEADS) {
                for (at, value) in values.iter_mut().enumerate() {
                    let channel = head * usize::from(DIM) + at % usize::from(DIM);
                    *value = known.means[channel] + known.steps[channel] / QPACK_STEP * bell(&mut prng);
                }
                page.write_head(head, &values);
            }
            (kind, bytes)
        };
        Self { pages: (0..count).map(page).collect(), channels }
    }

    pub fn page_bytes(&self) -> usize {
        self.pages[0].1.len()
    }

    /// The order of pages, repeated.
    fn kinds(&self) -> impl Iterator<Item = PageKind> {
        self.pages.iter().map(|(kind, _)| *kind).cycle()
    }

    /// All values of K, or of V.
    fn values(&self, side: Side) -> Vec<f32> {
        let mut all = Vec::new();
        for (kind, bytes) in self.pages.iter().filter(|(kind, _)| kind.side == side) {
            let mut values = vec![0.0; kind.shape.head_values()];
            for head in 0..usize::from(HEADS) {
                Page::new(*kind, bytes).read_head(head, &mut values);
                all.extend_from_slice(&values);
            }
        }
        all
    }

    /// The profile of these pages, as far as QPack's entropy coding needs it.
    fn profile(&self) -> Profile {
        let mut prng = Prng::new(0x9f0f_11e5);
        let normal = curve_of((0..200_000).map(|_| bell(&mut prng)).collect());
        let side = |channels: &Channels| SideProfile {
            means: channels.means.clone(),
            deviations: channels.steps.iter().map(|step| step / QPACK_STEP).collect(),
            steps: channels.steps.clone(),
            normal: normal.clone(),
            ..SideProfile::default()
        };
        Profile { model: [0; 32], tokens: 0, prompts: 0, layers: vec![self.channels.each_ref().map(side)], bases: None }
    }

    /// Every codec, by its name in the table.
    pub fn codecs(&self) -> Vec<(&'static str, Arc<dyn PageCodec>)> {
        let groups = Groups::default();
        let thresholds = [Side::K, Side::V].map(|side| Thresholds::of_sample(&groups, &self.values(side)));
        let speckv = |mode| Arc::new(SpecKv { mode }) as Arc<dyn PageCodec>;
        vec![
            ("raw", Arc::new(Raw)),
            ("int8", speckv(SpecKvMode::Int8)),
            ("int8+delta", speckv(SpecKvMode::Delta)),
            ("int8+delta+rle", speckv(SpecKvMode::DeltaRle)),
            ("qpack", Arc::new(QPack::new(vec![self.channels.clone()], PROFILE))),
            ("qpackz", Arc::new(QPackZ::new(&self.profile(), 1.0, PROFILE).expect("steps are sound"))),
            ("oaken", Arc::new(Oaken::new(groups, vec![thresholds], PROFILE))),
        ]
    }
}

/// Prism with one layer in a group, so that a frame is a page.
struct OneLayer(Prism);

impl PageCodec for OneLayer {
    fn id(&self) -> CodecId {
        self.0.id()
    }

    fn profile(&self) -> u32 {
        self.0.profile()
    }

    fn encode_payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        self.0.encode_group(std::slice::from_ref(page), POSITION, payload)
    }

    fn decode_payload(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        self.0.decode_payload(frame, page)
    }
}

impl Sample {
    /// Pages of one layer for Prism, and the codec: components are cosines over the channels, with
    /// deviations that fall by equal factors.
    pub fn of_components(element: Element, tokens: u16, count: usize) -> (Self, Arc<dyn PageCodec>) {
        let shape = Shape { heads: HEADS, tokens, dim: DIM };
        let channels = shape.token_values();
        let cosines: Vec<f32> = (0..channels * channels)
            .map(|at| {
                let (channel, component) = ((at / channels) as f64, (at % channels) as f64);
                let angle = std::f64::consts::PI * (channel + 0.5) * component / channels as f64;
                let size = if component == 0.0 { 1.0 } else { std::f64::consts::SQRT_2 };
                (size / (channels as f64).sqrt() * angle.cos()) as f32
            })
            .collect();
        let basis = |side: Side| {
            let scale = (2.0 / channels as f32).sqrt() / f32::from(i16::MAX);
            let [first, last] = COMPONENTS;
            let falls = |at: usize| first * (last / first).powf(at as f64 / channels as f64);
            let deviations: Vec<f32> =
                (0..channels).map(|at| Prism::steps(1.0)[side as usize] * falls(at) as f32).collect();
            let dim = usize::from(DIM);
            let diagonal = |at: usize| if at % dim == at / dim % dim { 1.0 } else { 0.0 };
            Basis {
                means: vec![0.0; channels],
                metric: match side {
                    Side::K => vec![1.0; channels],
                    Side::V => (0..channels * dim).map(diagonal).collect(),
                },
                scales: vec![scale; channels],
                matrix: cosines.iter().map(|cosine| (cosine / scale).round() as i16).collect(),
                magnitudes: deviations.iter().map(|deviation| deviation * 0.798).collect(),
                deviations,
            }
        };
        let frequencies = (0..DIM / 2).map(|pair| 1e5_f32.powf(-2.0 * f32::from(pair) / f32::from(DIM))).collect();
        let bases = Bases { frequencies, group: 1, groups: vec![[Side::K, Side::V].map(basis)] };
        let mut prng = Prng::new(0x0091_5e4e);
        let page = |at: usize| {
            let (side, order) = [(Side::K, Order::KeyPanels), (Side::V, Order::ValuePanels)][at % 2];
            let kind = PageKind { shape, element, layout: Layout { order, capacity: tokens }, side, layer: 0 };
            let deviations = &bases.groups[0][side as usize].deviations;
            let mut heads = vec![vec![0.0; shape.head_values()]; HEADS.into()];
            for token in 0..usize::from(tokens) {
                let components: Vec<f32> = deviations.iter().map(|deviation| deviation * bell(&mut prng)).collect();
                let mut values: Vec<f32> = cosines
                    .chunks_exact(channels)
                    .map(|row| row.iter().zip(&components).map(|(cosine, component)| cosine * component).sum())
                    .collect();
                for head in values.chunks_exact_mut(DIM.into()).filter(|_| side == Side::K) {
                    for (pair, frequency) in bases.frequencies.iter().enumerate() {
                        let (sin, cos) = (frequency * (POSITION as f32 + token as f32)).sin_cos();
                        let (a, b) = (head[pair], head[pair + usize::from(DIM) / 2]);
                        (head[pair], head[pair + usize::from(DIM) / 2]) = (a * cos - b * sin, b * cos + a * sin);
                    }
                }
                for (head, values) in heads.iter_mut().zip(values.chunks_exact(DIM.into())) {
                    head[token * usize::from(DIM)..][..usize::from(DIM)].copy_from_slice(values);
                }
            }
            let mut bytes = vec![0; kind.bytes()];
            let mut page = PageMut::new(kind, &mut bytes);
            heads.iter().enumerate().for_each(|(head, values)| page.write_head(head, values));
            (kind, bytes)
        };
        let pages = (0..count).map(page).collect();
        let codec = Prism::new(&bases, 1, Prism::steps(1.0), PROFILE).expect("steps are sound");
        let none = || Channels { means: Vec::new(), steps: Vec::new() };
        (Self { pages, channels: [none(), none()] }, Arc::new(OneLayer(codec)))
    }
}

/// Times of one codec for a slice of a working set: medians, in seconds.
pub struct Times {
    /// Bytes of pages of these times.
    pub bytes: usize,
    /// Bits per value in frames, headers included.
    pub bits: f64,
    pub encode: f64,
    pub decode: f64,
    /// Of checking the frames' sums alone.
    pub checksum: f64,
    /// Of copies between the encoding passes, and between the decoding passes.
    pub copy: [f64; 2],
}

/// Size of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Bytes of all pages.
    pub bytes: usize,
    /// Bytes of pages that are timed together: few, so that other load of the machine falls between
    /// most of them.
    pub slice_bytes: usize,
    /// Number of passes over everything.
    pub passes: usize,
}

/// Times slices of pages.
struct Watch {
    pages: usize,
    /// Seconds of each slice.
    slices: Vec<f64>,
}

impl Watch {
    /// Calls `each` with the pages in order.
    fn pass<T>(&mut self, pages: impl Iterator<Item = T>, mut each: impl FnMut(T)) {
        let mut pages = pages.peekable();
        while pages.peek().is_some() {
            let start = Instant::now();
            pages.by_ref().take(self.pages).for_each(&mut each);
            self.slices.push(start.elapsed().as_secs_f64());
        }
    }

    fn median(mut self) -> f64 {
        self.slices.sort_by(f64::total_cmp);
        self.slices[self.slices.len() / 2]
    }
}

/// Offset from a page boundary: on some machines, copies between equal page offsets are several
/// times slower, and so no limit.
struct Bytes {
    all: Vec<u8>,
    start: usize,
}

impl Bytes {
    fn new(count: usize, past_page: usize) -> Self {
        const PAGE: usize = 4096;
        let all = vec![0xff; count + 2 * PAGE];
        let start = all.as_ptr().align_offset(PAGE) + past_page;
        Self { all, start }
    }

    fn bytes(&self, count: usize) -> &[u8] {
        &self.all[self.start..][..count]
    }

    fn bytes_mut(&mut self, count: usize) -> &mut [u8] {
        &mut self.all[self.start..][..count]
    }
}

/// Pages of a working set in order, and space for as many.
pub struct WorkingSet<'a> {
    sample: &'a Sample,
    extent: Extent,
    from: Bytes,
    to: Bytes,
    /// Frames of all pages.
    frames: Vec<u8>,
}

impl<'a> WorkingSet<'a> {
    pub fn new(sample: &'a Sample, extent: Extent) -> Self {
        // Whole slices of whole pages.
        let size = sample.page_bytes();
        let slice_bytes = (extent.slice_bytes / size).max(1) * size;
        let bytes = (extent.bytes / slice_bytes).max(1) * slice_bytes;
        let extent = Extent { bytes, slice_bytes, ..extent };
        let (mut from, to) = (Bytes::new(bytes, 0), Bytes::new(bytes, 2048 + 64));
        let pages = from.bytes_mut(bytes).chunks_exact_mut(size).zip(sample.pages.iter().cycle());
        pages.for_each(|(to, (_, page))| to.copy_from_slice(page));
        Self { sample, extent, from, to, frames: Vec::new() }
    }

    /// Values of all pages.
    fn values(&self) -> usize {
        let (kind, bytes) = &self.sample.pages[0];
        self.extent.bytes / bytes.len() * kind.shape.values()
    }

    fn watch(&self) -> Watch {
        Watch { pages: self.extent.slice_bytes / self.sample.page_bytes(), slices: Vec::new() }
    }

    fn copy(&mut self, watch: &mut Watch) {
        let size = self.sample.page_bytes();
        let both = self
            .from
            .bytes(self.extent.bytes)
            .chunks_exact(size)
            .zip(self.to.bytes_mut(self.extent.bytes).chunks_exact_mut(size));
        watch.pass(both, |(from, to)| black_box(to).copy_from_slice(from));
    }

    fn encode(&mut self, codec: &dyn PageCodec, watch: &mut Watch) {
        self.frames.clear();
        let pages = self.from.bytes(self.extent.bytes).chunks_exact(self.sample.page_bytes()).zip(self.sample.kinds());
        watch.pass(pages, |(page, kind)| _ = encode(codec, &Page::new(kind, page), black_box(&mut self.frames)));
    }

    /// Pages that do not decode keep their content, which [`Self::check`] detects.
    fn decode(&mut self, codecs: &Codecs, watch: &mut Watch) {
        let mut rest = &self.frames[..];
        let pages =
            self.to.bytes_mut(self.extent.bytes).chunks_exact_mut(self.sample.page_bytes()).zip(self.sample.kinds());
        watch.pass(pages, |(page, kind)| {
            if let Ok((frame, behind)) = Frame::split(rest) {
                rest = behind;
                _ = codecs.decode_frame(&frame, &mut PageMut::new(kind, black_box(page)));
            }
        });
    }

    fn check_sums(&self, watch: &mut Watch) {
        let mut rest = &self.frames[..];
        watch.pass(self.from.bytes(self.extent.bytes).chunks_exact(self.sample.page_bytes()), |_| {
            if let Ok((_, behind)) = Frame::split(black_box(rest)) {
                rest = behind;
            }
        });
    }

    /// Measures one codec.
    ///
    /// # Errors
    /// Frames or pages differ from those of the scalar code.
    pub fn measure(&mut self, codec: &Arc<dyn PageCodec>) -> Result<Times, String> {
        let mut codecs = Codecs::default();
        codecs.add(Arc::clone(codec));
        // The first pass is not counted: it touches memory for the first time.
        let mut first = self.watch();
        self.encode(codec.as_ref(), &mut first);
        self.decode(&codecs, &mut first);
        let [mut encode, mut decode, mut checksum] = [(); 3].map(|()| self.watch());
        let mut copies = [(); 2].map(|()| self.watch());
        for _ in 0..self.extent.passes {
            self.copy(&mut copies[0]);
            self.encode(codec.as_ref(), &mut encode);
        }
        for _ in 0..self.extent.passes {
            self.copy(&mut copies[1]);
            self.decode(&codecs, &mut decode);
            self.check_sums(&mut checksum);
        }
        self.to.bytes_mut(self.extent.bytes).fill(0xff);
        self.decode(&codecs, &mut decode);
        self.check(codec, &codecs)?;
        Ok(Times {
            bytes: self.extent.slice_bytes,
            bits: self.frames.len() as f64 * 8.0 / self.values() as f64,
            encode: encode.median(),
            decode: decode.median(),
            checksum: checksum.median(),
            copy: copies.map(Watch::median),
        })
    }

    /// Whether the last frames and pages equal those of the scalar code, bit for bit.
    fn check(&self, codec: &Arc<dyn PageCodec>, codecs: &Codecs) -> Result<(), String> {
        let plain: Result<Vec<_>, String> = at_level(Level::Scalar, || {
            let both = |(kind, bytes): &(PageKind, Vec<u8>)| {
                let mut frame = Vec::new();
                encode(codec.as_ref(), &Page::new(*kind, bytes), &mut frame);
                // Padding did not change.
                let mut page = vec![0xff; bytes.len()];
                let decoded = codecs.decode(&frame, &mut PageMut::new(*kind, &mut page));
                decoded.map(|()| (frame, page)).map_err(|error| format!("a frame does not decode: {error}"))
            };
            self.sample.pages.iter().map(both).collect()
        });
        let plain = plain?;
        let mut rest = &self.frames[..];
        for ((frame, page), decoded) in
            plain.iter().cycle().zip(self.to.bytes(self.extent.bytes).chunks_exact(self.sample.page_bytes()))
        {
            let Some(behind) = rest.strip_prefix(&frame[..]) else {
                return Err("a frame is not what plain code makes of the page".to_owned());
            };
            rest = behind;
            if page != decoded {
                return Err("a page is not what plain code makes of the frame".to_owned());
            }
        }
        if rest.is_empty() { Ok(()) } else { Err("there are more frames than pages".to_owned()) }
    }
}

//! Mutations that leave out the effect of one call site. They show that each flush, fence and
//! invalidation is necessary.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::Location;
use std::str::FromStr;

/// A call site in the code under test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Path of the source file.
    pub file: String,
    /// Line in the file, from 1.
    pub line: u32,
    /// Column in the line, from 1.
    pub column: u32,
}

impl Place {
    pub(crate) fn is(&self, location: &Location<'_>) -> bool {
        self.line == location.line() && self.column == location.column() && self.file == location.file()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not FILE:LINE:COLUMN");
        let mut parts = text.rsplitn(3, ':');
        let mut number = || parts.next().and_then(|text| text.parse().ok()).ok_or_else(wrong);
        let (column, line) = (number()?, number()?);
        Ok(Self { file: parts.next().ok_or_else(wrong)?.to_owned(), line, column })
    }
}

/// Places at which the world perturbs fabric calls: it delays or crashes the calling process,
/// delays its flushes and fetches its lines early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Focus {
    /// One place.
    At(Place),
    /// One of sixteen shares of all places, by the hash of the place.
    Share {
        /// The share's number, 0 to 15.
        part: u64,
    },
}

/// Largest distance in lines of code at which a call near the place in focus may be delayed. Calls
/// that close probably belong to the same protocol.
pub(crate) const NEAR: u32 = 12;
/// Largest distance in lines of code at which the memory lines of a nearby call become hot, as
/// those of the place in focus do.
pub(crate) const NEIGHBOURHOOD: u32 = 32;

/// A focus, with what it has found about places.
pub(crate) struct Lens {
    focus: Focus,
    /// By a hash of the location's address: (address, whether the focus is on it). Hashing a place takes longer
    /// than the operation.
    known: [(usize, bool); KNOWN],
}

/// Places that a lens remembers, a power of two.
const KNOWN: usize = 512;

impl Lens {
    pub fn new(focus: Focus) -> Self {
        Self { focus, known: [(0, false); KNOWN] }
    }

    /// Distance in lines of code from the one place in focus. `u32::MAX` in another file, or if the
    /// focus is a share.
    pub fn lines_off(&self, location: &Location<'_>) -> u32 {
        match &self.focus {
            Focus::At(place) if place.file == location.file() => place.line.abs_diff(location.line()),
            _ => u32::MAX,
        }
    }

    pub fn is_on(&mut self, location: &'static Location<'static>) -> bool {
        let address = std::ptr::from_ref(location).addr();
        let known = &mut self.known[address / align_of::<Location<'_>>() % KNOWN];
        if known.0 != address {
            *known = (address, self.focus.is_on(location));
        }
        known.1
    }
}

impl Focus {
    fn is_on(&self, location: &Location<'_>) -> bool {
        match self {
            Self::At(place) => place.is(location),
            Self::Share { part } => {
                let mut hasher = DefaultHasher::new();
                (location.file(), location.line(), location.column()).hash(&mut hasher);
                hasher.finish() % 16 == *part
            }
        }
    }
}

/// A place that calls one method of the fabric.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// The place of the call.
    pub place: Place,
    /// The method's name.
    pub method: &'static str,
}

impl Site {
    pub(crate) fn new(method: &'static str, location: &Location<'_>) -> Self {
        let place = Place { file: location.file().to_owned(), line: location.line(), column: location.column() };
        Self { place, method }
    }

    /// The mutation that leaves out `effect` at this site.
    #[must_use]
    pub fn without(&self, effect: Effect) -> Mutation {
        Mutation { place: self.place.clone(), effect }
    }

    /// The effects that a mutation can leave out at this site.
    #[must_use]
    pub fn effects(&self) -> &'static [Effect] {
        match self.method {
            "publish" | "publish_unfenced" | "write_line" | "write_word" => &[Effect::Flush],
            "refresh" | "refresh_unfenced" | "refresh_payload" => &[Effect::Invalidation],
            "fence" | "publish_payload" => &[Effect::Fence],
            _ => &[],
        }
    }
}

/// Part of a call that a mutation leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The flush of the lines.
    Flush,
    /// The wait for flushes and streams.
    Fence,
    /// The invalidation of the lines.
    Invalidation,
}

impl Effect {
    const fn name(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::Fence => "fence",
            Self::Invalidation => "invalidation",
        }
    }
}

/// Leaves out one effect at one site.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutation {
    /// The place of the site.
    pub place: Place,
    /// The effect that is left out.
    pub effect: Effect,
}

impl Mutation {
    pub(crate) fn hits(&self, location: &Location<'_>, effect: Effect) -> bool {
        self.effect == effect && self.place.is(location)
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.place, self.effect.name())
    }
}

impl FromStr for Mutation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not FILE:LINE:COLUMN=flush, =fence or =invalidation");
        let (place, effect) = text.rsplit_once('=').ok_or_else(wrong)?;
        let effects = [Effect::Flush, Effect::Fence, Effect::Invalidation];
        let effect = effects.into_iter().find(|known| known.name() == effect).ok_or_else(wrong)?;
        Ok(Self { place: place.parse()?, effect })
    }
}

//! Leaving out the effect of one call site: how it is shown that each flush and each fence is needed.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::Location;
use std::str::FromStr;

/// A place in the product.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Path of the source file.
    pub file: String,
    /// Line in it.
    pub line: u32,
    /// Column in it.
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

/// Places at which the world turns against whoever calls the fabric there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Focus {
    /// This one.
    At(Place),
    /// The `part`-th of sixteen shares of all places.
    Share {
        /// Below sixteen.
        part: u64,
    },
}

/// Lines of code between two places that belong to one thought: who calls at one is held up for the other's sake.
pub(crate) const NEAR: u32 = 12;
/// Lines of code between two places that are about the same: the world is turned against the lines of both.
pub(crate) const NEIGHBOURHOOD: u32 = 32;

impl Focus {
    /// Lines of code between this and the one place in focus.
    pub(crate) fn lines_off(&self, location: &Location<'_>) -> u32 {
        match self {
            Self::At(place) if place.file == location.file() => place.line.abs_diff(location.line()),
            _ => u32::MAX,
        }
    }

    pub(crate) fn is_on(&self, location: &Location<'_>) -> bool {
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

/// A place that calls the fabric.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// Where.
    pub place: Place,
    /// Method of the fabric.
    pub method: &'static str,
}

impl Site {
    pub(crate) fn new(method: &'static str, location: &Location<'_>) -> Self {
        let place = Place { file: location.file().to_owned(), line: location.line(), column: location.column() };
        Self { place, method }
    }

    /// This site with one of its effects left out.
    #[must_use]
    pub fn without(&self, effect: Effect) -> Mutation {
        Mutation { place: self.place.clone(), effect }
    }

    /// What can be left out at this site.
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
    /// Lines are not flushed.
    Flush,
    /// Nothing is waited for.
    Fence,
    /// Lines are not dropped.
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

/// One effect left out at one site.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutation {
    /// Where.
    pub place: Place,
    /// What is left out there.
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

//! Leaving out the effect of one call site: how it is shown that each flush and each fence is needed.

use std::fmt;
use std::panic::Location;
use std::str::FromStr;

/// A place in the product that calls the fabric.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// Path of the source file.
    pub file: String,
    /// Line in it.
    pub line: u32,
    /// Column in it.
    pub column: u32,
    /// Method of the fabric.
    pub method: &'static str,
}

impl Site {
    pub(crate) fn new(method: &'static str, location: &Location<'_>) -> Self {
        Self { file: location.file().to_owned(), line: location.line(), column: location.column(), method }
    }

    /// This site with one of its effects left out.
    #[must_use]
    pub fn without(&self, effect: Effect) -> Mutation {
        Mutation { file: self.file.clone(), line: self.line, column: self.column, effect }
    }

    /// What can be left out at this site.
    #[must_use]
    pub fn effects(&self) -> &'static [Effect] {
        match self.method {
            "publish" | "publish_lines" | "publish_word" => &[Effect::Flush, Effect::Fence],
            "publish_unfenced" => &[Effect::Flush],
            "refresh" | "refresh_payload" => &[Effect::Invalidation, Effect::Fence],
            "publish_payload" => &[Effect::Fence],
            _ => &[],
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
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
    /// Path of the source file.
    pub file: String,
    /// Line in it.
    pub line: u32,
    /// Column in it.
    pub column: u32,
    /// What is left out there.
    pub effect: Effect,
}

impl Mutation {
    pub(crate) fn hits(&self, location: &Location<'_>, effect: Effect) -> bool {
        self.effect == effect
            && self.line == location.line()
            && self.column == location.column()
            && self.file == location.file()
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}={}", self.file, self.line, self.column, self.effect.name())
    }
}

impl FromStr for Mutation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not FILE:LINE:COLUMN=flush, =fence or =invalidation");
        let (place, effect) = text.rsplit_once('=').ok_or_else(wrong)?;
        let effects = [Effect::Flush, Effect::Fence, Effect::Invalidation];
        let effect = effects.into_iter().find(|known| known.name() == effect).ok_or_else(wrong)?;
        let mut parts = place.rsplitn(3, ':');
        let mut number = || parts.next().and_then(|text| text.parse().ok()).ok_or_else(wrong);
        let (column, line) = (number()?, number()?);
        let file = parts.next().ok_or_else(wrong)?.to_owned();
        Ok(Self { file, line, column, effect })
    }
}

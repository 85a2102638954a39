//! Byte sizes as people write them: `64KiB`, `2MiB`, `1.5GiB`, `4096`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of bytes, parsed from and shown with binary units.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash, Serialize, Deserialize)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, unit) in UNITS {
            if self.0 >= unit {
                let whole = self.0 as f64 / unit as f64;
                return if self.0.is_multiple_of(unit) {
                    write!(f, "{} {name}", self.0 / unit)
                } else {
                    write!(f, "{whole:.1} {name}")
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// The text is not a byte size. Carries the text for the message.
#[derive(Debug, PartialEq, Eq)]
pub enum ParseByteSizeError {
    /// It is none.
    NotASize(String),
    /// Its unit is one of 1000 by its name, and of 1024 in the mouth of most people.
    Ambiguous(String),
}

impl fmt::Display for ParseByteSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotASize(text) => {
                write!(f, "`{text}` is not a size; write a number with KiB, MiB, GiB or TiB, like 512MiB")
            }
            Self::Ambiguous(text) => {
                write!(f, "`{text}` may mean units of 1000 or of 1024; write KiB, MiB, GiB or TiB (1024), or the bytes")
            }
        }
    }
}

impl std::error::Error for ParseByteSizeError {}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseByteSizeError::NotASize(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (digits, suffix) = trimmed.split_at(split);
        let unit = match suffix.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1_u64 << 40,
            "kb" | "mb" | "gb" | "tb" => return Err(ParseByteSizeError::Ambiguous(text.to_owned())),
            _ => return Err(wrong()),
        };
        if let Ok(whole) = digits.parse::<u64>() {
            return whole.checked_mul(unit).map(ByteSize).ok_or_else(wrong);
        }
        let value = digits.parse::<f64>().map_err(|_| wrong())? * unit as f64;
        // A float above 2^53 does not hold every byte count; such a size is a typing error.
        if value.is_finite() && (0.0..9.0e15).contains(&value) { Ok(ByteSize(value as u64)) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_written() {
        for (text, bytes) in
            [("4096", 4096), ("64KiB", 65536), ("2 MiB", 2 << 20), ("1.5GiB", 3 << 29), ("1g", 1 << 30)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for wrong in ["", "MiB", "12 parsecs", "-1", "99999999999999TiB", "1e3"] {
            assert!(wrong.parse::<ByteSize>().is_err(), "{wrong}");
        }
        let error = "4GB".parse::<ByteSize>().expect_err("by its name 4,000,000,000");
        assert!(error.to_string().contains("GiB"), "{error}");
    }

    #[test]
    fn sizes_show_the_largest_unit() {
        assert_eq!(ByteSize(2 << 20).to_string(), "2 MiB");
        assert_eq!(ByteSize(3 << 19).to_string(), "1.5 MiB");
        assert_eq!(ByteSize(100).to_string(), "100 B");
    }
}

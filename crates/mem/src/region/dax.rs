//! Facts about DAX character devices from sysfs.

use std::fs;
use std::io;
use std::path::Path;

/// Facts of a DAX device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DaxFacts {
    /// Bytes of the device.
    pub size: u64,
    /// Lengths and offsets of mappings must be multiples of this many bytes.
    pub align: u64,
    /// NUMA node of the memory (`target_node`, or else the device's own node), when known.
    pub numa_node: Option<u32>,
}

impl DaxFacts {
    /// Reads the facts of device `major:minor` below `root` (`/` but for tests).
    ///
    /// # Errors
    /// `size` or `align` cannot be read, is no number, or `align` is no power of two.
    pub fn read(root: &Path, major: u32, minor: u32) -> io::Result<Self> {
        Self::read_device(&root.join(format!("sys/dev/char/{major}:{minor}")))
    }

    /// Reads the facts of the device with this directory in sysfs.
    pub(crate) fn read_device(device: &Path) -> io::Result<Self> {
        // Older kernels put the attributes one level down, behind the `device` link.
        let text = |name: &str| {
            fs::read_to_string(device.join(name)).or_else(|_| fs::read_to_string(device.join("device").join(name)))
        };
        let number = |name: &str| {
            let text = text(name)?;
            parse_number(text.trim()).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{name} of the device is `{}`, no number", text.trim()),
                )
            })
        };
        let (size, align) = (number("size")?, number("align")?);
        if size == 0 || !align.is_power_of_two() || align < 4096 {
            let fact = format!("the device has {size} bytes and an alignment of {align}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, fact));
        }
        // -1 means that the kernel knows no node.
        let node = |name: &str| text(name).ok().and_then(|text| text.trim().parse().ok());
        Ok(Self { size, align, numa_node: node("target_node").or_else(|| node("numa_node")) })
    }
}

/// Decimal, or hexadecimal with `0x`, as both occur in sysfs.
fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(place: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary directory");
        let device = root.path().join("sys/dev/char/252:3").join(place);
        fs::create_dir_all(&device).expect("made");
        for (name, text) in files {
            fs::write(device.join(name), text).expect("written");
        }
        root
    }

    #[test]
    fn facts_are_read_from_both_places() {
        for place in ["", "device"] {
            let root = fake(place, &[("size", "1073741824\n"), ("align", "0x200000\n"), ("target_node", "2\n")]);
            let facts = DaxFacts::read(root.path(), 252, 3).expect("readable");
            assert_eq!(facts, DaxFacts { size: 1 << 30, align: 2 << 20, numa_node: Some(2) });
        }
    }

    #[test]
    fn an_unknown_node_is_none() {
        let root = fake("", &[("size", "4194304"), ("align", "2097152"), ("target_node", "-1"), ("numa_node", "1")]);
        assert_eq!(DaxFacts::read(root.path(), 252, 3).expect("readable").numa_node, Some(1));
        let root = fake("", &[("size", "4194304"), ("align", "2097152"), ("numa_node", "-1")]);
        assert_eq!(DaxFacts::read(root.path(), 252, 3).expect("readable").numa_node, None);
    }

    #[test]
    fn nonsense_is_an_error() {
        for files in [
            &[("size", "1073741824"), ("align", "3000000")] as &[_],
            &[("size", "0"), ("align", "2097152")],
            &[("size", "many"), ("align", "2097152")],
            &[("align", "2097152")],
        ] {
            let root = fake("", files);
            assert!(DaxFacts::read(root.path(), 252, 3).is_err(), "{files:?}");
        }
    }
}

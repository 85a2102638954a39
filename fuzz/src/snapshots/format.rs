//! The parts of a snapshot, implemented a second time from docs/internals/cold-format.md alone.

use super::super::edit::number;
use super::super::input::Input;
use std::ops::Range;

/// Parts begin at multiples of it.
pub const SECTOR: usize = 4096;
/// Bytes of the headers of records and of other parts.
const RECORD_HEAD: usize = 128;
const PART_HEAD: usize = 64;

/// Kinds of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Settings = 1,
    Namespace = 2,
    Object = 3,
    End = 4,
    Block = 0,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn digest(context: &[u8], bytes: &[u8]) -> [u8; 8] {
    let hash = *blake3::Hasher::new().update(context).update(bytes).finalize().as_bytes();
    hash[..8].try_into().expect("eight bytes")
}

/// All parts whose headers look like one, with as many bytes as the headers say and the file has.
pub fn parts(file: &[u8]) -> Vec<(Kind, Range<usize>)> {
    let of = |at: usize| {
        let part = &file[at..];
        let (kind, bytes) = match part.get(..RECORD_HEAD)? {
            head if head.starts_with(b"CNTBLOCK") => (Kind::Block, (RECORD_HEAD as u64).saturating_add(word(head, 64))),
            head if head.starts_with(b"CNTPART\0") => {
                let kinds = [Kind::Settings, Kind::Namespace, Kind::Object, Kind::End];
                let kind = kinds.into_iter().find(|kind| head[12..16] == (*kind as u32).to_le_bytes())?;
                (kind, (PART_HEAD as u64).saturating_add(word(head, 16)))
            }
            _ => return None,
        };
        let bytes = bytes.min(1 << 30).next_multiple_of(SECTOR as u64) as usize;
        Some((kind, at..at + bytes.min(part.len())))
    };
    (0..file.len()).step_by(SECTOR).filter_map(of).collect()
}

/// The namespace and the hash of a record.
pub fn record_key(record: &[u8]) -> ([u8; 32], [u8; 16]) {
    (record[16..48].try_into().expect("32 bytes"), record[48..64].try_into().expect("16 bytes"))
}

/// Makes a record's header hold, and leaves the sum of its payload alone.
pub fn seal_head(record: &mut [u8]) {
    let check = digest(b"cenote record header v1", &record[..120]);
    record[120..128].copy_from_slice(&check);
}

/// Makes a part's header hold, and leaves the sum of its payload alone.
pub fn seal_part(part: &mut [u8]) {
    let check = digest(b"cenote snapshot header v1", &part[..56]);
    part[56..64].copy_from_slice(&check);
}

/// The payload of a part that is no record.
pub fn payload(part: &[u8]) -> &[u8] {
    let length = usize::try_from(word(part, 16)).unwrap_or(usize::MAX).min(part.len() - PART_HEAD);
    &part[PART_HEAD..PART_HEAD + length]
}

/// A whole part.
pub fn encode(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut part = vec![0; PART_HEAD];
    part[..8].copy_from_slice(b"CNTPART\0");
    part[8..12].copy_from_slice(&1_u32.to_le_bytes());
    part[12..16].copy_from_slice(&(kind as u32).to_le_bytes());
    part[16..24].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    part[24..32].copy_from_slice(&digest(b"cenote snapshot payload v1", payload));
    seal_part(&mut part);
    part.extend_from_slice(payload);
    part.resize(part.len().next_multiple_of(SECTOR), 0);
    part
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Changes a line of `name=value`.
pub fn change_line(input: &mut Input<'_>, text: &mut Vec<u8>) {
    let kept = String::from_utf8_lossy(text).into_owned();
    let mut lines: Vec<String> = kept.lines().map(str::to_owned).collect();
    if lines.is_empty() {
        return;
    }
    let at = input.below(lines.len() as u64) as usize;
    let line = lines[at].clone();
    let (name, value) = line.split_once('=').unwrap_or((&line, ""));
    match input.byte() % 16 {
        0 => drop(lines.remove(at)),
        1 => lines.insert(at, line.clone()),
        2 => {
            // The value of another line.
            let other = input.below(lines.len() as u64) as usize;
            let value = lines[other].split_once('=').map_or("", |(_, value)| value).to_owned();
            lines[at] = format!("{name}={value}");
        }
        3 => {
            const ODD: [&str; 8] =
                ["", "-1", "x", "1e9", "18446744073709551616", "\u{1f4a7}=\u{2028}", "\u{0}", "bakery"];
            lines[at] = format!("{name}={}", ODD[input.below(ODD.len() as u64) as usize]);
        }
        4 => lines[at] = format!("{name}={}", value.repeat(1 + input.below(64) as usize)),
        5 => lines[at] = format!("{}={value}", number(input)),
        6 | 7 => {
            // A number nearby is most often possible.
            let near = value.parse::<u64>().unwrap_or(0);
            let by = input.below(9);
            let near = if input.chance(128) { near.wrapping_sub(by) } else { near << (by % 4) };
            lines[at] = format!("{name}={near}");
        }
        _ => lines[at] = format!("{name}={}", number(input)),
    }
    *text = lines.into_iter().flat_map(|line| [line, "\n".to_owned()]).collect::<String>().into_bytes();
}

//! Contents of blocks and objects: pure functions of their names, so that any process can check the
//! bytes.

use cenote_base::BlockHash;

/// The `index`-th word of the content for `key`.
const fn word(key: [u64; 2], index: u64) -> u64 {
    let mixed =
        (key[0].wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ key[1]).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

fn write(key: [u64; 2], bytes: &mut [u8]) {
    for (index, chunk) in (0..).zip(bytes.chunks_mut(8)) {
        chunk.copy_from_slice(&word(key, index).to_le_bytes()[..chunk.len()]);
    }
}

/// Number of wrong bytes.
fn count_wrong(key: [u64; 2], bytes: &[u8]) -> u64 {
    let wrong = (0..).zip(bytes.chunks(8)).map(|(index, chunk)| {
        let expected = word(key, index).to_le_bytes();
        chunk.iter().zip(&expected).filter(|(found, expected)| found != expected).count() as u64
    });
    wrong.sum()
}

/// Writes the payload of the block with this hash.
pub fn write_block(hash: BlockHash, payload: &mut [u8]) {
    write(hash.words(), payload);
}

/// Number of wrong bytes in a payload.
pub fn wrong_block_bytes(hash: BlockHash, payload: &[u8]) -> u64 {
    count_wrong(hash.words(), payload)
}

/// Bytes of an object's head, which contains its version.
pub const OBJECT_HEAD_BYTES: usize = 8;

/// Content `version` of object `number`, `length` bytes long with its head.
pub fn object(number: u64, version: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length.max(OBJECT_HEAD_BYTES)];
    let (head, body) = bytes.split_at_mut(OBJECT_HEAD_BYTES);
    head.copy_from_slice(&version.to_le_bytes());
    write([number, version], body);
    bytes
}

/// Number of bytes of object `number` that do not match the version in its head.
pub fn wrong_object_bytes(number: u64, bytes: &[u8]) -> u64 {
    let Some((head, body)) = bytes.split_first_chunk::<OBJECT_HEAD_BYTES>() else { return bytes.len() as u64 };
    count_wrong([number, u64::from_le_bytes(*head)], body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_is_counted() {
        let mut bytes = object(3, 9, 1001);
        assert_eq!((wrong_object_bytes(3, &bytes), wrong_object_bytes(3, &[])), (0, 0));
        bytes[1000] ^= 1;
        bytes[8] ^= 0x80;
        assert_eq!(wrong_object_bytes(3, &bytes), 2);
        assert!(wrong_object_bytes(4, &bytes) > 900 && wrong_object_bytes(3, &[1, 2]) == 2);
    }
}

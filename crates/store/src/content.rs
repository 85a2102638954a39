//! BLAKE3 digests of whole files, and of bytes that a reader has taken from one, to identify the
//! weights that KV depends on. All threads share pieces of all files, so one large file takes no
//! longer than many small ones of the same total size.

use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Bytes per piece: a power of two, so that pieces are subtrees of a file's hash tree.
const PIECE_BYTES: u64 = 8 << 20;
const READ_BYTES: usize = 256 << 10;

/// The BLAKE3 hash of each file's content, in the order of `files`.
///
/// # Errors
/// A file cannot be read, or became shorter during the call. The number is the file's index in
/// `files`.
pub fn digests(files: &[&File]) -> Result<Vec<[u8; 32]>, (usize, io::Error)> {
    let lengths = files.iter().enumerate().map(|(number, file)| match file.metadata() {
        Ok(about) => Ok(about.len()),
        Err(error) => Err((number, error)),
    });
    let lengths: Vec<u64> = lengths.collect::<Result<_, _>>()?;
    hash(&lengths, &|file, start, end, whole, buffer| hash_piece(files[file], start, end, whole, buffer))
}

/// The BLAKE3 hash of bytes that are in memory. A reader that hashes what it has read names exactly
/// what it uses, whatever happens to the file meanwhile.
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    let of_piece = |_: usize, start: u64, end: u64, whole: bool, _: &mut [u8]| {
        let at = |offset: u64| usize::try_from(offset).expect("the bytes are in memory");
        let mut hasher = Hasher::new();
        hasher.set_input_offset(start);
        hasher.update(&bytes[at(start)..at(end)]);
        Ok(if whole { *hasher.finalize().as_bytes() } else { hasher.finalize_non_root() })
    };
    let hashed = hash(&[bytes.len() as u64], &of_piece);
    hashed.expect("memory can be read")[0]
}

/// Hashes a piece: the number of its content, its range, whether it is all, and a buffer.
type HashPiece<'a> = dyn Fn(usize, u64, u64, bool, &mut [u8]) -> io::Result<ChainingValue> + Sync + 'a;

/// Hashes contents of these lengths piece by piece, with all threads.
fn hash(lengths: &[u64], of_piece: &HashPiece<'_>) -> Result<Vec<[u8; 32]>, (usize, io::Error)> {
    // An empty content also has one piece.
    let all = |(number, length): (usize, &u64)| {
        (0..length.div_ceil(PIECE_BYTES).max(1)).map(move |piece| (number, piece * PIECE_BYTES))
    };
    let pieces: Vec<(usize, u64)> = lengths.iter().enumerate().flat_map(all).collect();
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<(usize, io::Error)>> = Mutex::new(None);
    let work = || {
        let (mut buffer, mut done) = (vec![0; READ_BYTES], Vec::new());
        while let Some(&(file, start)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let whole = lengths[file] <= PIECE_BYTES;
            let end = lengths[file].min(start + PIECE_BYTES);
            match of_piece(file, start, end, whole, &mut buffer) {
                Ok(value) => done.push((file, start, value)),
                Err(error) => {
                    // Makes the other threads find no further piece.
                    next.store(pieces.len(), Ordering::Relaxed);
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some((file, error));
                }
            }
        }
        done
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(pieces.len());
    let mut values: Vec<_> = match threads {
        0 | 1 => work(),
        _ => thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("hashing does not panic")).collect()
        }),
    };
    if let Some(failure) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(failure);
    }
    values.sort_unstable_by_key(|&(file, start, _)| (file, start));
    let of_file = |number: usize| {
        let first = values.partition_point(|&(file, ..)| file < number);
        let last = values.partition_point(|&(file, ..)| file <= number);
        values[first..last].iter().map(|&(_, _, value)| value).collect::<Vec<_>>()
    };
    Ok(lengths.iter().enumerate().map(|(number, &length)| root(&of_file(number), length)).collect())
}

/// The chaining value of a piece or, if it is the `whole` file, the file's hash.
fn hash_piece(file: &File, start: u64, end: u64, whole: bool, buffer: &mut [u8]) -> io::Result<ChainingValue> {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(start);
    let mut at = start;
    while at < end {
        let count = usize::try_from(end - at).map_or(buffer.len(), |left| left.min(buffer.len()));
        file.read_exact_at(&mut buffer[..count], at)?;
        hasher.update(&buffer[..count]);
        at += count as u64;
    }
    Ok(if whole { *hasher.finalize().as_bytes() } else { hasher.finalize_non_root() })
}

/// The hash of a file of `length` bytes from its pieces' values.
fn root(pieces: &[ChainingValue], length: u64) -> [u8; 32] {
    match pieces {
        [whole] => *whole,
        _ => {
            let (left, right, left_length) = halves(pieces, length);
            let (left, right) = (subtree(left, left_length), subtree(right, length - left_length));
            *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()
        }
    }
}

fn subtree(pieces: &[ChainingValue], length: u64) -> ChainingValue {
    match pieces {
        [piece] => *piece,
        _ => {
            let (left, right, left_length) = halves(pieces, length);
            let (left, right) = (subtree(left, left_length), subtree(right, length - left_length));
            merge_subtrees_non_root(&left, &right, Mode::Hash)
        }
    }
}

fn halves(pieces: &[ChainingValue], length: u64) -> (&[ChainingValue], &[ChainingValue], u64) {
    let left_length = left_subtree_len(length);
    let (left, right) = pieces.split_at(usize::try_from(left_length / PIECE_BYTES).expect("pieces are in memory"));
    (left, right, left_length)
}

#[cfg(test)]
mod tests {
    use super::{PIECE_BYTES, digest, digests};
    use std::fs::File;
    use std::io::Write;
    use std::path::PathBuf;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("cenote-content-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).expect("the folder for temporary files is writable");
            Self(path)
        }

        fn file(&self, name: &str, content: &[u8]) -> File {
            let path = self.0.join(name);
            File::create(&path).and_then(|mut file| file.write_all(content)).expect("the folder is writable");
            File::open(path).expect("it was just written")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn content(length: u64) -> Vec<u8> {
        (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
    }

    #[test]
    fn a_digest_is_the_blake3_hash_of_the_whole_content() {
        let folder = Folder::new("whole");
        let lengths = [
            0,
            1,
            1025,
            PIECE_BYTES - 1,
            PIECE_BYTES,
            PIECE_BYTES + 1,
            2 * PIECE_BYTES,
            2 * PIECE_BYTES + 1,
            3 * PIECE_BYTES,
            5 * PIECE_BYTES + 4097,
        ];
        let contents = lengths.map(content);
        let files: Vec<File> =
            contents.iter().enumerate().map(|(number, bytes)| folder.file(&number.to_string(), bytes)).collect();
        let made = digests(&files.iter().collect::<Vec<_>>()).expect("they can be read");
        let expected: Vec<[u8; 32]> = contents.iter().map(|bytes| *blake3::hash(bytes).as_bytes()).collect();
        assert_eq!(made, expected);
        assert_eq!(contents.map(|content| digest(&content)).to_vec(), expected, "of bytes in memory");
    }

    #[test]
    fn every_byte_changes_the_digest() {
        let folder = Folder::new("byte");
        let mut bytes = content(2 * PIECE_BYTES + 100);
        let first = digests(&[&folder.file("first", &bytes)]).expect("it can be read");
        for at in [0, bytes.len() / 3, bytes.len() - 1] {
            bytes[at] ^= 1;
            assert_ne!(digests(&[&folder.file("changed", &bytes)]).expect("it can be read"), first, "byte {at}");
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn the_error_gives_the_index_of_the_unreadable_file() {
        let folder = Folder::new("unread");
        let directory = File::open(&folder.0).expect("it was just made");
        let (number, _) = digests(&[&folder.file("fine", b"fine"), &directory]).expect_err("a folder has no content");
        assert_eq!(number, 1);
    }
}

//! Two ends of a connection show each other that they have the same key. The owner then sends one message,
//! authenticated under the key.
//!
//! Each end draws 32 random bytes. All keyed hashes are BLAKE3 under the key that the operator gave to
//! both, over a word that names the step, and both ends' random bytes: none is of use in another step
//! or connection. The message is not secret.

use cenote_base::Deadline;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// The first bytes of each end.
const MAGIC: [u8; 16] = *b"cenote reach 1\r\n";
/// Longest message.
const MESSAGE_MAX: u32 = 4 << 20;

/// The key of hosts that read each other's regions.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

type Nonce = [u8; 32];

/// Longest file with a key.
const KEY_FILE_MAX: u64 = 4096;

impl Key {
    /// This key.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key in a file: 64 hex digits.
    ///
    /// # Errors
    /// The file cannot be read, or other users can read or write it, or it has no key.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        let text = cenote_mem::keys::secret_text(path, KEY_FILE_MAX)?;
        let mut bytes = Zeroizing::new([0; 32]);
        hex::decode_to_slice(text.trim(), &mut *bytes).map_err(|_| {
            let name = path.display();
            io::Error::other(format!("{name}: a key is 64 hex digits; make one with `openssl rand -hex 32`"))
        })?;
        Ok(Self(*bytes))
    }

    fn hash(&self, step: &str, nonces: &[Nonce; 2], more: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&(step.len() as u64).to_le_bytes());
        hasher.update(step.as_bytes());
        nonces.iter().for_each(|nonce| _ = hasher.update(nonce));
        hasher.update(more);
        hasher.finalize()
    }

    /// A hash of something that both ends know, for the message of this key's connections.
    #[must_use]
    pub(crate) fn name_of(&self, what: &str, secret: &[u8]) -> [u8; 32] {
        *self.hash(what, &[[0; 32]; 2], secret).as_bytes()
    }
}

fn refused(fact: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, fact)
}

/// The connection of an exchange.
pub trait Duplex {
    /// Reads some bytes, as [`Read::read`], within this time, which is not zero.
    ///
    /// # Errors
    /// The other end went away. [`io::ErrorKind::WouldBlock`]: the time has passed.
    fn read(&mut self, bytes: &mut [u8], within: Duration) -> io::Result<usize>;

    /// Writes some bytes, as [`Write::write`], within this time, which is not zero.
    ///
    /// # Errors
    /// As of [`Duplex::read`].
    fn write(&mut self, bytes: &[u8], within: Duration) -> io::Result<usize>;
}

impl Duplex for &TcpStream {
    fn read(&mut self, bytes: &mut [u8], within: Duration) -> io::Result<usize> {
        self.set_read_timeout(Some(within))?;
        Read::read(self, bytes)
    }

    fn write(&mut self, bytes: &[u8], within: Duration) -> io::Result<usize> {
        self.set_write_timeout(Some(within))?;
        Write::write(self, bytes)
    }
}

/// A connection whose reads and writes end at a deadline, all together.
struct Timed<D>(D, Deadline);

impl<D: Duplex> Timed<D> {
    fn time(&self) -> io::Result<Duration> {
        match self.1.block_for() {
            time if time.is_zero() => Err(io::Error::new(io::ErrorKind::TimedOut, "the deadline has passed")),
            time => Ok(time),
        }
    }

    fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_all(&mut bytes)?;
        Ok(bytes)
    }

    fn read_all(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let time = self.time()?;
            match self.0.read(bytes, time) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                // The clock decides, not the socket.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let time = self.time()?;
            match self.0.write(bytes, time) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                // The clock decides, not the socket.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn nonce() -> io::Result<Nonce> {
    cenote_pool::random_bytes().map_err(|error| io::Error::other(error.to_string()))
}

/// The owner's end. `message` is called only for a reader that has the key.
///
/// # Errors
/// The reader is none of this version, has another key, went away, or was too slow. The message is too long.
pub fn answer(stream: impl Duplex, key: &Key, deadline: Deadline, message: impl FnOnce() -> Vec<u8>) -> io::Result<()> {
    let mut stream = Timed(stream, deadline);
    if stream.read::<16>()? != MAGIC {
        return Err(refused("not a reader of this version"));
    }
    let nonces = [stream.read()?, nonce()?];
    stream.write(&[&MAGIC[..], &nonces[1], key.hash("owner", &nonces, &[]).as_bytes()].concat())?;
    if key.hash("reader", &nonces, &[]) != blake3::Hash::from_bytes(stream.read()?) {
        return Err(refused("the reader has another key"));
    }
    let message = message();
    let length = u32::try_from(message.len()).ok().filter(|length| *length <= MESSAGE_MAX);
    let length = length.ok_or_else(|| io::Error::other("too long a message"))?;
    let tag = key.hash("message", &nonces, &message);
    stream.write(&[&length.to_le_bytes()[..], tag.as_bytes(), &message].concat())
}

/// The reader's end. Returns the owner's message.
///
/// # Errors
/// The owner is none of this version, has another key, went away, or was too slow. The message is too long
/// or forged.
pub fn ask(stream: impl Duplex, key: &Key, deadline: Deadline) -> io::Result<Vec<u8>> {
    let mut stream = Timed(stream, deadline);
    let own = nonce()?;
    stream.write(&[&MAGIC[..], &own].concat())?;
    if stream.read::<16>()? != MAGIC {
        return Err(refused("it is no `cenote pool share` of this version"));
    }
    let nonces = [own, stream.read()?];
    if key.hash("owner", &nonces, &[]) != blake3::Hash::from_bytes(stream.read()?) {
        return Err(refused("it has another key"));
    }
    stream.write(key.hash("reader", &nonces, &[]).as_bytes())?;
    let length = u32::from_le_bytes(stream.read()?);
    if length > MESSAGE_MAX {
        return Err(refused("its message is too long"));
    }
    let tag = blake3::Hash::from_bytes(stream.read()?);
    let mut message = vec![0; length as usize];
    stream.read_all(&mut message)?;
    if key.hash("message", &nonces, &message) != tag {
        return Err(refused("its message is forged or damaged"));
    }
    Ok(message)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "sockets have real time")]
mod tests {
    use super::*;
    use cenote_base::Clock;
    use cenote_base::testing::{ManualTime, PATIENCE};
    use std::net::TcpListener;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let reader = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        (listener.accept().expect("it connects").0, reader)
    }

    fn patience() -> Deadline {
        Clock::system().after(PATIENCE)
    }

    fn exchange(owner: Key, reader: &Key, message: &'static [u8]) -> (io::Result<()>, io::Result<Vec<u8>>) {
        let (ours, theirs) = connected();
        std::thread::scope(|scope| {
            let answering = scope.spawn(move || answer(&ours, &owner, patience(), || message.to_vec()));
            let asked = ask(&theirs, reader, patience());
            drop(theirs);
            (answering.join().expect("no panic"), asked)
        })
    }

    #[test]
    fn ends_with_one_key_exchange_a_message() {
        let key = Key::new([1; 32]);
        for message in [&b""[..], b"here"] {
            let (answered, asked) = exchange(key.clone(), &key, message);
            assert_eq!((answered.is_ok(), asked.expect("one key")), (true, message.to_vec()));
        }
    }

    #[test]
    fn ends_with_two_keys_exchange_nothing() {
        let (answered, asked) = exchange(Key::new([1; 32]), &Key::new([2; 32]), b"here");
        assert_eq!(asked.expect_err("another key").kind(), io::ErrorKind::PermissionDenied);
        answered.expect_err("the reader went away");
        // A reader that shows a wrong proof gets no message.
        let (ours, mut theirs) = connected();
        let answering = std::thread::spawn(move || {
            answer(&ours, &Key::new([1; 32]), patience(), || panic!("the message is not made"))
        });
        theirs.write_all(&[&MAGIC[..], &[5; 32], &[6; 32]].concat()).expect("it listens");
        let error = answering.join().expect("no panic").expect_err("a wrong proof");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn an_earlier_exchange_proves_nothing() {
        let key = Key::new([1; 32]);
        let nonces = [[1; 32], [2; 32]];
        assert_ne!(key.hash("owner", &nonces, &[]), key.hash("reader", &nonces, &[]));
        assert_ne!(key.hash("owner", &nonces, &[]), key.hash("owner", &[nonces[1], nonces[0]], &[]));
        assert_ne!(key.name_of("a", b"b"), Key::new([2; 32]).name_of("a", b"b"));
    }

    #[test]
    fn garbage_and_long_messages_are_refused() {
        let (ours, mut theirs) = connected();
        let answering = std::thread::spawn(move || answer(&ours, &Key::new([1; 32]), patience(), Vec::new));
        theirs.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it listens");
        answering.join().expect("no panic").expect_err("no reader");
        let key = Key::new([1; 32]);
        for length in [MESSAGE_MAX + 1, u32::MAX, 10] {
            let (ours, theirs) = connected();
            let owner = key.clone();
            let lying = std::thread::spawn(move || {
                let mut stream = Timed(&ours, patience());
                stream.read::<16>().expect("it begins");
                let nonces = [stream.read().expect("it begins"), [9; 32]];
                stream.write(&[&MAGIC[..], &nonces[1], owner.hash("owner", &nonces, &[]).as_bytes()].concat()).unwrap();
                stream.read::<32>().expect("a proof");
                // Bytes without a right tag.
                stream.write(&[&length.to_le_bytes()[..], &[0; 32], &[0; 10]].concat()).unwrap();
            });
            let error = ask(&theirs, &key, patience()).expect_err("a lie");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{length}");
            lying.join().expect("no panic");
        }
    }

    #[test]
    fn an_end_that_says_nothing_is_left_at_the_deadline() {
        let time = ManualTime::start();
        let (ours, mut theirs) = connected();
        let deadline = time.clock().after(std::time::Duration::from_secs(1));
        let answering = std::thread::spawn(move || answer(&ours, &Key::new([1; 32]), deadline, Vec::new));
        // A byte now and then changes nothing.
        theirs.write_all(&MAGIC[..3]).expect("it listens");
        time.advance(std::time::Duration::from_secs(1));
        assert_eq!(answering.join().expect("no panic").expect_err("late").kind(), io::ErrorKind::TimedOut);
    }

    /// Each part that the socket took had the whole time again, so a slow reader held its owner for long.
    #[test]
    fn an_end_that_reads_nothing_is_left_at_the_deadline() {
        let time = ManualTime::start();
        let (ours, theirs) = connected();
        let deadline = time.clock().after(std::time::Duration::from_secs(1));
        let (filled, is_filled) = std::sync::mpsc::channel();
        let writing = std::thread::spawn(move || {
            // More than any socket keeps.
            let mut stream = Timed(&ours, deadline);
            let outcome = stream.write(&vec![7; 64 << 20]);
            filled.send(()).expect("the test waits");
            outcome
        });
        theirs.set_nonblocking(true).expect("a socket");
        let mut byte = [0];
        cenote_base::testing::until("the writer writes", || theirs.peek(&mut byte).is_ok().then_some(()));
        assert!(is_filled.try_recv().is_err(), "only time ends it");
        time.advance(std::time::Duration::from_secs(1));
        assert_eq!(writing.join().expect("no panic").expect_err("late").kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_key_is_64_digits_in_a_file_of_its_user() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().expect("a file");
        let write = |text: &str| std::fs::write(file.path(), text).expect("it is ours");
        write(&format!("{}\n", "0a".repeat(32)));
        assert_eq!(Key::from_file(file.path()).expect("a key").0, [10; 32]);
        for wrong in ["", "0a", &"zz".repeat(32), &"0a".repeat(33)] {
            write(wrong);
            let error = Key::from_file(file.path()).expect_err(wrong).to_string();
            assert!(error.contains("openssl rand -hex 32"), "{error}");
        }
        write(&"0a".repeat(32));
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o644)).expect("it is ours");
        assert!(Key::from_file(file.path()).is_err(), "every user can read it");
    }
}

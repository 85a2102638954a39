//! Both ends of the exchange, each with another end that an input plays.

use crate::cold::clock::Still;
use crate::edit::{edit, number};
use crate::input::Input;
use cenote_base::HashSeed;
use cenote_reach::Key;
use cenote_reach::exchange::{Duplex, Exchange, Exchanges, answer, ask, metadata_in};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

const KEY: [u8; 32] = [1; 32];
const OTHER_KEY: [u8; 32] = [2; 32];
const SEED: [u8; 32] = [3; 32];
const MAGIC: &[u8; 16] = b"cenote reach 1\r\n";
/// The longest message (docs/guides/reach.md has no length: this is the product's).
const MESSAGE_MAX: usize = 4 << 20;
/// Time of an exchange, and of a call that finds the connection busy.
const TIME: Duration = Duration::from_secs(5);
const BUSY: Duration = Duration::from_millis(500);
/// Most exchanges at a time, in all and of an address.
const ALL_MAX: usize = 64;
const ADDRESS_MAX: usize = 8;

/// The keyed hash of a step, from the description in `crates/reach/src/auth.rs`.
fn hash(key: &[u8; 32], step: &str, nonces: [&[u8]; 2], more: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&(step.len() as u64).to_le_bytes()).update(step.as_bytes());
    hasher.update(nonces[0]).update(nonces[1]).update(more);
    *hasher.finalize().as_bytes()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Owner,
    Reader,
}

/// An end that an input plays.
struct Script<'a> {
    input: Input<'a>,
    role: Role,
    key: [u8; 32],
    nonce: [u8; 32],
    message: Vec<u8>,
    /// Bytes from the product's end.
    got: Vec<u8>,
    /// Bytes to it: those of an honest end, those that are sent, and how many of them were read.
    honest: Vec<u8>,
    sent: Vec<u8>,
    read: usize,
    frames: u8,
    /// Whether it was busy, went away, or sent other bytes.
    is_hostile: bool,
    calls: u32,
}

impl Script<'_> {
    /// Sends the next frame, once the product's end has sent what an honest end would wait for.
    fn go_on(&mut self) {
        let other_nonce: [u8; 32] = self.got.get(16..48).map_or([0; 32], |nonce| nonce.try_into().expect("32 bytes"));
        let frame = match (self.role, self.frames) {
            (Role::Owner, 0) if self.got.len() >= 48 => {
                [&MAGIC[..], &self.nonce, &hash(&self.key, "owner", [&other_nonce, &self.nonce], &[])].concat()
            }
            (Role::Owner, 1) if self.got.len() >= 80 => {
                let tag = hash(&self.key, "message", [&other_nonce, &self.nonce], &self.message);
                [&(self.message.len() as u32).to_le_bytes()[..], &tag, &self.message].concat()
            }
            (Role::Reader, 0) => [&MAGIC[..], &self.nonce].concat(),
            (Role::Reader, 1) if self.got.len() >= 80 => {
                hash(&self.key, "reader", [&self.nonce, &other_nonce], &[]).to_vec()
            }
            _ => return,
        };
        self.frames += 1;
        let mut sent = frame.clone();
        if self.input.chance(64) {
            // A proof of another exchange, an edit, or a length.
            match self.input.byte() % 4 {
                0 => {
                    let old = hash(
                        &self.key,
                        ["owner", "reader", "message"][self.input.below(3) as usize],
                        [&[7; 32], &[8; 32]],
                        &[],
                    );
                    let at = sent.len().saturating_sub(32);
                    sent.splice(at.., old);
                }
                1 if self.role == Role::Owner && self.frames == 2 => {
                    sent[..4].copy_from_slice(&(number(&mut self.input) as u32).to_le_bytes());
                }
                _ => drop(edit(&mut self.input, &mut sent, &frame, 16)),
            }
        }
        self.is_hostile |= sent != frame;
        self.honest.extend(frame);
        self.sent.extend(sent);
    }

    /// Whether this call has no effect but time.
    fn is_busy(&mut self) -> Option<io::Error> {
        self.calls += 1;
        if !self.input.chance(16) {
            return None;
        }
        let kind = match self.input.byte() % 4 {
            0 => io::ErrorKind::ConnectionReset,
            1 => io::ErrorKind::Interrupted,
            _ => io::ErrorKind::WouldBlock,
        };
        Still::advance(BUSY);
        self.is_hostile = true;
        Some(kind.into())
    }

    fn some(&mut self, of: usize) -> usize {
        if self.input.chance(64) { 1 + self.input.below(of as u64) as usize } else { of }
    }
}

impl Duplex for &mut Script<'_> {
    fn read(&mut self, bytes: &mut [u8], within: Duration) -> io::Result<usize> {
        assert!(!within.is_zero() && !bytes.is_empty());
        if let Some(error) = self.is_busy() {
            return Err(error);
        }
        if self.read == self.sent.len() {
            self.go_on();
        }
        let count = bytes.len().min(self.sent.len() - self.read);
        if count == 0 {
            return Ok(0);
        }
        let count = self.some(count);
        bytes[..count].copy_from_slice(&self.sent[self.read..self.read + count]);
        self.read += count;
        Ok(count)
    }

    fn write(&mut self, bytes: &[u8], within: Duration) -> io::Result<usize> {
        assert!(!within.is_zero() && !bytes.is_empty());
        if let Some(error) = self.is_busy() {
            return Err(error);
        }
        let count = self.some(bytes.len());
        self.got.extend(&bytes[..count]);
        Ok(count)
    }
}

/// Ends with a key.
pub struct Exchanging {
    offer: Vec<u8>,
}

impl Default for Exchanging {
    fn default() -> Self {
        Self::new()
    }
}

impl Exchanging {
    /// Makes an offer.
    ///
    /// # Panics
    /// An honest end is refused.
    #[must_use]
    pub fn new() -> Self {
        let seed = hash(&KEY, "hash seed", [&[0; 32], &[0; 32]], &SEED);
        let offer = serde_json::json!({
            "region": "00".repeat(16), "created": 1_700_000_000, "seed": hex::encode(seed), "region_bytes": 1 << 20,
            "base": 1_u64 << 40, "registration": 1, "metadata": hex::encode([9; 200]),
        });
        let exchanging = Self { offer: serde_json::to_vec(&offer).expect("plain data") };
        (0..2).for_each(|role| exchanging.run(&[role]));
        exchanging
    }

    /// Exchanges with an end that the input plays, or begins and ends exchanges with many addresses.
    ///
    /// # Panics
    /// A message was believed that no end with the key sent so, or an honest end was refused.
    pub fn run(&self, input: &[u8]) {
        let mut input = Input::new(input);
        let kind = input.byte() % 4;
        match kind {
            0 | 2 => self.play(Role::Owner, input),
            1 => self.play(Role::Reader, input),
            _ => crowd(&mut input),
        }
    }

    fn play(&self, role: Role, mut input: Input<'_>) {
        let key = if input.chance(24) { OTHER_KEY } else { KEY };
        let mut message = self.offer.clone();
        // An owner with the key may say anything.
        for _ in 0..input.byte() % 3 {
            let _ = edit(&mut input, &mut message, &self.offer, 8);
        }
        if input.chance(4) {
            message.resize(MESSAGE_MAX + usize::from(input.byte() % 2), b' ');
        }
        let nonce = std::array::from_fn(|_| input.byte());
        let is_hostile = key != KEY || message.len() > MESSAGE_MAX;
        let (got, honest, sent) = (Vec::new(), Vec::new(), Vec::new());
        let mut script =
            Script { input, role, key, nonce, message, got, honest, sent, read: 0, frames: 0, is_hostile, calls: 0 };
        let deadline = Still::clock().after(TIME);
        match role {
            Role::Owner => Self::expect_asked(ask(&mut script, &Key::new(KEY), deadline), &script),
            Role::Reader => {
                let mut is_told = false;
                let message = script.message.clone();
                let outcome = answer(&mut script, &Key::new(KEY), deadline, || {
                    is_told = true;
                    message.clone()
                });
                Self::expect_answered(&outcome, is_told, &script);
            }
        }
        // Each busy call takes time, and each other one moves a byte.
        let bytes = script.sent.len() + script.got.len();
        assert!(u64::from(script.calls) <= bytes as u64 + 2 * (TIME.as_millis() / BUSY.as_millis()) as u64 + 2);
    }

    fn expect_asked(outcome: io::Result<Vec<u8>>, script: &Script<'_>) {
        let Ok(message) = outcome else { return assert!(script.is_hostile, "an honest owner was refused") };
        assert!(script.key == KEY && script.honest.starts_with(&script.sent[..script.read]), "a forged frame counts");
        assert!(message == script.message && message.len() <= MESSAGE_MAX, "another message");
        let Ok(Some(metadata)) = metadata_in(&message, &Key::new(KEY), &HashSeed(SEED)) else { return };
        let offer: serde_json::Value = serde_json::from_slice(&message).expect("an offer is JSON");
        assert!(offer["metadata"].as_str().is_some_and(|hex| hex.to_lowercase() == hex::encode(&metadata)));
    }

    fn expect_answered(outcome: &io::Result<()>, is_told: bool, script: &Script<'_>) {
        if is_told {
            assert!(script.key == KEY && script.honest.starts_with(&script.sent[..script.read]), "no proof of the key");
        }
        let Ok(()) = outcome else { return assert!(script.is_hostile, "an honest reader was refused: {outcome:?}") };
        let nonces = [&script.nonce[..], &script.got[16..48]];
        let proof = hash(&KEY, "owner", nonces, &[]);
        let tag = hash(&KEY, "message", nonces, &script.message);
        let length = (script.message.len() as u32).to_le_bytes();
        let wanted = [&MAGIC[..], nonces[1], &proof, &length, &tag, &script.message].concat();
        assert!(is_told && script.got == wanted, "the owner sent other frames");
    }
}

/// Readers without the key begin exchanges and end them.
fn crowd(input: &mut Input<'_>) {
    let all = Arc::<Exchanges>::default();
    let mut open: Vec<(IpAddr, Exchange)> = Vec::new();
    while !input.is_spent() {
        if input.chance(64) && !open.is_empty() {
            drop(open.swap_remove(input.below(open.len() as u64) as usize));
            continue;
        }
        let [low, high] = [input.byte() % 4, input.byte()];
        // One network of an IPv6 address counts as one, and so does an IPv4 address in either form.
        let address: (IpAddr, IpAddr) = match input.byte() % 3 {
            0 => (Ipv4Addr::new(10, 0, low, high % 16).into(), Ipv4Addr::new(10, 0, low, high % 16).into()),
            1 => {
                let address = Ipv4Addr::new(10, 0, low, high % 16);
                (address.to_ipv6_mapped().into(), address.into())
            }
            _ => (
                Ipv6Addr::new(0xfd00, 0, 0, low.into(), 0, 0, 0, high.into()).into(),
                Ipv6Addr::new(0xfd00, 0, 0, low.into(), 0, 0, 0, 0).into(),
            ),
        };
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        open.iter().for_each(|(place, _)| *counts.entry(*place).or_default() += 1);
        let has_room = open.len() < ALL_MAX && counts.get(&address.1).is_none_or(|&count| count < ADDRESS_MAX);
        let begun = all.begin(SocketAddr::new(address.0, 1));
        assert_eq!(begun.is_ok(), has_room, "{} exchanges, {counts:?}, and one of {}", open.len(), address.1);
        open.extend(begun.ok().map(|exchange| (address.1, exchange)));
    }
}

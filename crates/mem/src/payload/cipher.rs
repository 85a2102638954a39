//! AEGIS-128X2 for payloads that are copied piece by piece.
//!
//! The crate `aegis` has a safe MAC and a safe encryption of that kind. Its decryption holds back all
//! plaintext until the tag is verified, so it needs the whole destination at once, and a payload goes
//! to one page after the other. So decryption calls the crate's C library, libaegis, itself. The
//! crate's version is pinned, and a test compares both.

use super::PIECE_BYTES;
use aegis::aegis128x2::{Aegis128X2, Aegis128X2Mac, Encryptor};
use cenote_base::seal::PayloadKey;
use std::ffi::c_int;
use zeroize::Zeroize;

const TAG_BYTES: usize = 16;

/// A MAC under way. The crate does not wipe its state.
pub(super) struct Mac(Box<Aegis128X2Mac<TAG_BYTES>>);

impl Mac {
    pub(super) fn new(key: &PayloadKey) -> Self {
        Self(Box::new(Aegis128X2Mac::new_with_nonce(&key.key, &key.nonce)))
    }

    pub(super) fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub(super) fn finish(self) -> [u8; TAG_BYTES] {
        self.0.finalize()
    }

    pub(super) fn verify(self, tag: &[u8; TAG_BYTES]) -> bool {
        self.0.verify(tag).is_ok()
    }
}

/// An encryption under way. The crate wipes its state.
pub(super) struct Encryption {
    cipher: Box<Encryptor<TAG_BYTES>>,
    piece: Box<[u8]>,
}

impl Encryption {
    pub(super) fn new(key: &PayloadKey) -> Self {
        let cipher = Box::new(Aegis128X2::new(&key.key, &key.nonce).encryptor(&[]));
        Self { cipher, piece: vec![0; PIECE_BYTES].into() }
    }

    /// The next piece, encrypted. At most [`PIECE_BYTES`].
    pub(super) fn encrypt(&mut self, plain: &[u8]) -> &[u8] {
        let piece = &mut self.piece[..plain.len()];
        self.cipher.update(plain, piece);
        piece
    }

    pub(super) fn finish(self) -> [u8; TAG_BYTES] {
        self.cipher.finalize()
    }
}

/// A decryption under way.
pub(super) struct Decryption(Box<State>);

impl Decryption {
    pub(super) fn new(key: &PayloadKey) -> Self {
        // A first use of the crate makes libaegis choose its instructions.
        let _ = Aegis128X2::<TAG_BYTES>::new(&key.key, &key.nonce);
        let mut state = Box::new(State { opaque: [0; 448] });
        // SAFETY: `state` has the size and the alignment of the C library's state, which the call
        // fills; the key and the nonce have 16 bytes each, and no associated data is read.
        unsafe {
            aegis128x2_state_init(&raw mut *state, std::ptr::null(), 0, key.nonce.as_ptr(), key.key.as_ptr());
        }
        Self(state)
    }

    /// Decrypts a piece in its place.
    pub(super) fn decrypt(&mut self, piece: &mut [u8]) {
        let bytes = piece.as_mut_ptr();
        // SAFETY: the state is initialised, and both pointers are to the same `piece.len()` bytes,
        // which the call may read and write: it works on equal places.
        let status = unsafe { aegis128x2_state_decrypt_update(&raw mut *self.0, bytes, bytes, piece.len()) };
        assert_eq!(status, 0, "libaegis takes any length");
    }

    /// Adds a piece without keeping its plaintext.
    pub(super) fn check(&mut self, piece: &[u8]) {
        let (none, bytes) = (std::ptr::null_mut(), piece.as_ptr());
        // SAFETY: the state is initialised and `bytes` has `piece.len()` readable bytes; without a
        // destination the call stores no plaintext.
        let status = unsafe { aegis128x2_state_decrypt_update(&raw mut *self.0, none, bytes, piece.len()) };
        assert_eq!(status, 0, "libaegis takes any length");
    }

    pub(super) fn verify(mut self, tag: &[u8; TAG_BYTES]) -> bool {
        // SAFETY: the state is initialised and the tag has `TAG_BYTES` bytes.
        unsafe { aegis128x2_state_decrypt_final(&raw mut *self.0, tag.as_ptr(), TAG_BYTES) == 0 }
    }
}

impl Drop for Decryption {
    fn drop(&mut self) {
        self.0.opaque.zeroize();
    }
}

/// The state of libaegis (`aegis128x2.h`). It must not move to another alignment.
#[repr(C, align(64))]
struct State {
    opaque: [u8; 448],
}

unsafe extern "C" {
    fn aegis128x2_state_init(state: *mut State, data: *const u8, data_bytes: usize, nonce: *const u8, key: *const u8);
    fn aegis128x2_state_decrypt_update(state: *mut State, to: *mut u8, from: *const u8, bytes: usize) -> c_int;
    fn aegis128x2_state_decrypt_final(state: *mut State, tag: *const u8, tag_bytes: usize) -> c_int;
}

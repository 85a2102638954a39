//! Ids of codecs, and errors of decoding.

/// The codec of a payload: a byte of the frame, which never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum CodecId {
    /// [`Raw`](crate::Raw)
    Raw = 0,
    /// [`SpecKv`](crate::SpecKv)
    SpecKv = 1,
    /// [`Oaken`](crate::Oaken)
    Oaken = 2,
    /// [`QPack`](crate::QPack)
    QPack = 3,
    /// [`QPackZ`](crate::QPackZ)
    QPackZ = 4,
    /// [`Prism`](crate::Prism)
    Prism = 5,
}

impl CodecId {
    /// The codec of a number.
    #[must_use]
    pub const fn of(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Raw),
            1 => Some(Self::SpecKv),
            2 => Some(Self::Oaken),
            3 => Some(Self::QPack),
            4 => Some(Self::QPackZ),
            5 => Some(Self::Prism),
            _ => None,
        }
    }
}

/// Why bytes do not decode to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the frame's length.
    #[error("the frame is cut short")]
    Truncated,
    /// Bytes behind the frame: so many.
    #[error("{0} bytes follow the frame")]
    Trailing(usize),
    /// The bytes differ from those that were written.
    #[error("the frame's checksum does not match; the frame is corrupt")]
    Checksum,
    /// A field of the header has an invalid value.
    #[error("the frame's header is invalid: {0}")]
    Header(&'static str),
    /// An unknown codec.
    #[error("no codec has the number {0}")]
    UnknownCodec(u8),
    /// A version of a payload that this program does not know.
    #[error("version {version} of codec {codec:?} is unknown")]
    UnknownVersion {
        /// The codec.
        codec: CodecId,
        /// The version.
        version: u8,
    },
    /// A profile that this program does not have.
    #[error("profile {0:08x} is unknown; decode with the profile that encoded the frame")]
    UnknownProfile(u32),
    /// The page has another shape, side or layer than the frame.
    #[error("the frame is of another kind of page")]
    OtherPage,
    /// The codec did not make this payload.
    #[error("the payload is invalid: {0}")]
    Payload(&'static str),
}

/// A page that a codec leaves to [`Raw`](crate::Raw): it has values that are not finite, or does
/// not become smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declined;

//! Ids of codecs, and errors of decoding.

/// Which codec made a payload: a byte that frames bear for ever.
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
}

impl CodecId {
    /// The codec of this number.
    #[must_use]
    pub const fn of(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Raw),
            1 => Some(Self::SpecKv),
            2 => Some(Self::Oaken),
            3 => Some(Self::QPack),
            4 => Some(Self::QPackZ),
            _ => None,
        }
    }
}

/// Why bytes do not decode to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are fewer than a frame takes.
    #[error("the frame is cut short")]
    Truncated,
    /// There are more than the frame takes: by so many.
    #[error("{0} bytes follow the frame")]
    Trailing(usize),
    /// They are not what was written.
    #[error("the frame's checksum does not hold")]
    Checksum,
    /// A field of the header has a value without a meaning.
    #[error("the frame's header does not hold: {0}")]
    Header(&'static str),
    /// No codec has this number.
    #[error("no codec has the number {0}")]
    UnknownCodec(u8),
    /// A version of a payload that this program does not know.
    #[error("version {version} of codec {codec:?} is not known")]
    UnknownVersion {
        /// Whose.
        codec: CodecId,
        /// Which.
        version: u8,
    },
    /// A profile that nobody has given to this program.
    #[error("profile {0:08x} is not known")]
    UnknownProfile(u32),
    /// The frame is of a page of another shape, side or layer.
    #[error("the frame is of another kind of page")]
    OtherPage,
    /// The payload is none of this codec.
    #[error("the payload does not hold: {0}")]
    Payload(&'static str),
}

/// A page that a codec leaves to [`Raw`](crate::Raw): it has values that are no numbers, or would not become smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declined;

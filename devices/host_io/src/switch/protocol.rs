//! Messages between a switch and its ports: one per datagram of a `SOCK_SEQPACKET` socket, little-endian.
//!
//! Each message starts with a [`Header`]. A port says [`Hello`] first and sends nothing else until the switch answers
//! with [`Welcome`] or with [`REFUSED`] and a line of text. After that both sides exchange [`FRAME`]s. Messages of an
//! unknown kind are ignored and fixed parts may grow at their end, so features can be added behind a feature bit
//! without a new version.

use device_model::net::MacAddr;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the protocol spoken here.
pub const VERSION: u16 = 1;
/// First bytes of [`Hello`] and [`Welcome`]: tells a foreign program on the socket from a peer.
pub const MAGIC: [u8; 8] = *b"VRBN-SW\0";
/// Feature bits this side offers: none yet.
pub const FEATURES: u64 = 0;
/// Longest port name in bytes of UTF-8; what is longer is cut.
pub const MAX_NAME: usize = 64;
/// Room for any message that is not a frame.
pub const MAX_CONTROL: usize = 512;
/// Bytes in front of every message's body.
pub const HEADER_LEN: usize = size_of::<Header>();

/// [`Header::kind`]: port to switch, [`Hello`] and the port's name.
pub const HELLO: u8 = 1;
/// [`Header::kind`]: switch to port, [`Welcome`].
pub const WELCOME: u8 = 2;
/// [`Header::kind`]: switch to port before it hangs up; the body is the reason in UTF-8.
pub const REFUSED: u8 = 3;
/// [`Header::kind`]: first message of a connection that is no port, [`Named`]: the process has a port with this address, and
/// takes channels there.
pub const ATTACH: u8 = 4;
/// [`Header::kind`]: on such a connection, [`Named`]: asks for a channel to the machine with this address.
pub const CALL: u8 = 5;
/// [`Header::kind`]: the switch's answer to both machines, [`Named`] for who is at the other end; comes with the socket.
pub const CONNECT: u8 = 6;
/// [`Header::kind`]: either way, one Ethernet frame without its frame check sequence.
pub const FRAME: u8 = 16;

/// Start of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// One of the kinds above; unknown ones are ignored.
    pub kind: u8,
    /// Zero; ignored by the receiver.
    pub reserved: [u8; 3],
}

impl Header {
    /// The header of a message of this kind.
    pub const fn new(kind: u8) -> Self {
        Self { kind, reserved: [0; 3] }
    }
}

/// What a port says of itself. Its name follows, [`MAX_NAME`] bytes of UTF-8 at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// Oldest protocol version the port speaks.
    pub version_min: U16,
    /// Newest protocol version the port speaks.
    pub version_max: U16,
    /// Longest frame in bytes that the port takes; longer ones are not delivered to it.
    pub max_frame: U32,
    /// Features the port would use.
    pub features: U64,
    /// Bytes of name that follow.
    pub name_len: U16,
    /// Zero; ignored by the receiver.
    pub reserved: [u8; 6],
}

/// The switch's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Welcome {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// Protocol version both sides use from here on.
    pub version: U16,
    /// Largest IP packet in bytes that the switch is set up for.
    pub mtu: U16,
    /// Number of the port, for messages to people.
    pub port: U32,
    /// Features both sides have.
    pub features: U64,
}

/// A machine, by the Ethernet address of its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Named {
    /// [`MAGIC`].
    magic: [u8; 8],
    mac: [u8; 6],
    /// Zero; ignored by the receiver.
    reserved: [u8; 2],
}

impl Named {
    /// Names a machine.
    pub const fn new(mac: MacAddr) -> Self {
        Self { magic: MAGIC, mac: mac.0, reserved: [0; 2] }
    }

    /// The machine's address.
    pub const fn mac(&self) -> MacAddr {
        MacAddr(self.mac)
    }

    /// Reads a whole message of the given kind; `None` when it is not one.
    pub fn parse(message: &[u8], kind: u8) -> Option<Self> {
        body::<Self>(message, kind).ok().map(|(named, _)| named).filter(|named| named.magic == MAGIC)
    }

    /// Writes the message that [`Named::parse`] reads.
    pub fn encode(&self, kind: u8) -> Vec<u8> {
        [Header::new(kind).as_bytes(), self.as_bytes()].concat()
    }
}

/// Why a peer's first message was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Too short, of the wrong kind or without the magic.
    #[error("Not a Verbena switch protocol message")]
    Foreign,
    /// No version in common.
    #[error(
        "Peer speaks switch protocol versions {0} to {1}, this side speaks {VERSION}: use the same release on both"
    )]
    Version(u16, u16),
    /// The port would take no frame, or a name is not UTF-8.
    #[error("Hello with a field out of range")]
    Field,
}

/// A validated [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Longest frame in bytes that the port takes.
    pub max_frame: usize,
    /// Features both sides have.
    pub features: u64,
    /// What the port calls itself.
    pub name: String,
}

impl Introduction {
    /// Reads a whole message.
    ///
    /// # Errors
    ///
    /// See [`ProtocolError`].
    pub fn parse(message: &[u8]) -> Result<Self, ProtocolError> {
        let (hello, rest) = body::<Hello>(message, HELLO)?;
        if hello.magic != MAGIC {
            return Err(ProtocolError::Foreign);
        }
        let (min, max) = (hello.version_min.get(), hello.version_max.get());
        if !(min..=max).contains(&VERSION) {
            return Err(ProtocolError::Version(min, max));
        }
        let max_frame = usize::try_from(hello.max_frame.get()).map_err(|_| ProtocolError::Field)?;
        let name_len = usize::from(hello.name_len.get());
        let name = rest.get(..name_len).filter(|n| n.len() <= MAX_NAME).ok_or(ProtocolError::Field)?;
        let name = str::from_utf8(name).map_err(|_| ProtocolError::Field)?;
        if max_frame < device_model::net::ETHERNET_HEADER || name.contains(char::is_control) {
            return Err(ProtocolError::Field);
        }
        Ok(Self { max_frame, features: hello.features.get() & FEATURES, name: name.to_owned() })
    }

    /// Writes the message that [`Introduction::parse`] reads.
    pub fn encode(&self) -> Vec<u8> {
        let name = truncated(&self.name, MAX_NAME);
        let hello = Hello {
            magic: MAGIC,
            version_min: VERSION.into(),
            version_max: VERSION.into(),
            max_frame: u32::try_from(self.max_frame).unwrap_or(u32::MAX).into(),
            features: self.features.into(),
            name_len: u16::try_from(name.len()).unwrap_or_default().into(),
            reserved: [0; 6],
        };
        [Header::new(HELLO).as_bytes(), hello.as_bytes(), name.as_bytes()].concat()
    }
}

/// The switch's first message, as a port reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The port may send and receive.
    Welcome {
        /// Largest IP packet in bytes that the switch is set up for.
        mtu: u16,
        /// Number of the port at the switch.
        port: u32,
    },
    /// The switch will hang up, for this reason.
    Refused(String),
}

impl Answer {
    /// Reads a whole message.
    ///
    /// # Errors
    ///
    /// See [`ProtocolError`].
    pub fn parse(message: &[u8]) -> Result<Self, ProtocolError> {
        if let Ok((header, reason)) = Header::read_from_prefix(message)
            && header.kind == REFUSED
        {
            let clean: String = String::from_utf8_lossy(reason).chars().filter(|c| !c.is_control()).collect();
            return Ok(Self::Refused(truncated(&clean, MAX_CONTROL).to_owned()));
        }
        let (welcome, _) = body::<Welcome>(message, WELCOME)?;
        if welcome.magic != MAGIC {
            return Err(ProtocolError::Foreign);
        }
        let version = welcome.version.get();
        if version != VERSION {
            return Err(ProtocolError::Version(version, version));
        }
        Ok(Self::Welcome { mtu: welcome.mtu.get(), port: welcome.port.get() })
    }

    /// Writes the message that [`Answer::parse`] reads.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome { mtu, port } => {
                let welcome = Welcome {
                    magic: MAGIC,
                    version: VERSION.into(),
                    mtu: (*mtu).into(),
                    port: (*port).into(),
                    features: FEATURES.into(),
                };
                [Header::new(WELCOME).as_bytes(), welcome.as_bytes()].concat()
            }
            Self::Refused(reason) => {
                let reason = truncated(reason, MAX_CONTROL - HEADER_LEN);
                [Header::new(REFUSED).as_bytes(), reason.as_bytes()].concat()
            }
        }
    }
}

/// Splits a message of the given kind into its fixed part and what follows.
fn body<T: FromBytes>(message: &[u8], kind: u8) -> Result<(T, &[u8]), ProtocolError> {
    let (header, rest) = Header::read_from_prefix(message).map_err(|_| ProtocolError::Foreign)?;
    if header.kind != kind {
        return Err(ProtocolError::Foreign);
    }
    T::read_from_prefix(rest).map_err(|_| ProtocolError::Foreign)
}

/// The longest prefix of whole characters that fits in `len` bytes.
fn truncated(text: &str, len: usize) -> &str {
    &text[..text.floor_char_boundary(len)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const _: () = assert!(size_of::<Header>() == 4 && size_of::<Hello>() == 32 && size_of::<Welcome>() == 24);

    fn hello() -> Introduction {
        Introduction { max_frame: 9018, features: 0, name: "vm0/net0".into() }
    }

    #[test]
    fn hello_without_a_common_version_is_refused_by_its_versions() {
        let mut message = hello().encode();
        message[HEADER_LEN + 8..HEADER_LEN + 12].copy_from_slice(&[7, 0, 9, 0]);
        assert_eq!(Introduction::parse(&message), Err(ProtocolError::Version(7, 9)));
    }

    #[test]
    fn hello_with_a_newer_tail_is_understood() {
        let mut message = hello().encode();
        message.extend_from_slice(b"later fields");
        assert_eq!(Introduction::parse(&message), Ok(hello()));
    }

    #[test]
    fn hello_that_takes_no_frame_or_has_a_bad_name_is_refused() {
        let mut tiny = hello();
        tiny.max_frame = 13;
        assert_eq!(Introduction::parse(&tiny.encode()), Err(ProtocolError::Field));
        let mut bell = hello();
        bell.name = "vm\u{7}".into();
        assert_eq!(Introduction::parse(&bell.encode()), Err(ProtocolError::Field));
        let message = hello().encode();
        assert_eq!(Introduction::parse(&message[..message.len() - 1]), Err(ProtocolError::Field));
    }

    #[test]
    fn long_name_is_cut_at_a_character() {
        let long = Introduction { name: "é".repeat(60), ..hello() };
        assert_eq!(Introduction::parse(&long.encode()).map(|i| i.name), Ok("é".repeat(32)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(message in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Introduction::parse(&message);
            let _ = Answer::parse(&message);
        }

        #[test]
        fn introduction_survives_encoding(max_frame in 14_usize..70_000, name in "[ -~]{0,64}") {
            let intro = Introduction { max_frame, features: 0, name };
            prop_assert_eq!(Introduction::parse(&intro.encode()), Ok(intro));
        }

        #[test]
        fn answer_survives_encoding(mtu: u16, port: u32, reason in "[ -~]{0,100}") {
            let welcome = Answer::Welcome { mtu, port };
            prop_assert_eq!(Answer::parse(&welcome.encode()), Ok(welcome));
            let refused = Answer::Refused(reason);
            prop_assert_eq!(Answer::parse(&refused.encode()), Ok(refused));
        }
    }
}

//! What is said between the two ends of a migration: sections of a stream.
//!
//! A section is a header of 20 bytes and a body. The header has a checksum of its own, so that a length is believed only if
//! it was sent, and each kind has a bound of its own, which is checked before the body is read.
//!
//! | connection | from the source | from the target |
//! |---|---|---|
//! | the first | hello; records; commit, or abort; end | welcome, or refused; prepared; committed, or unknown |
//! | others | join; pages and zeros; end | |

use device_model::save::Records;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the stream. Records have versions of their own.
pub(super) const VERSION: u32 = 1;
/// Bytes of a page, as memory is moved.
pub(super) const PAGE: usize = 4096;
/// Pages in one section, at most.
pub(super) const MAX_PAGES: usize = 256;
/// Connections for memory, at most.
pub(super) const MAX_CONNECTIONS: u8 = 16;
/// Bytes of a header.
pub(super) const HEADER: usize = size_of::<Header>();
/// Bytes of the body of a short section, at most.
const MAX_SHORT: usize = 4096;
/// Bytes of all records, at most.
const MAX_RECORDS: usize = 1 << 30;
/// Bytes in front of pages: the number of the first.
const FIRST: usize = size_of::<u64>();

const MAGIC: [u8; 4] = *b"VRBM";

/// Names one migration; nobody can guess it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Session(pub(super) [u8; 16]);

/// Names one process that receives a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Instance(pub(super) [u8; 16]);

/// How memory moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Transfer {
    /// Over so many connections.
    Copy { connections: u8 },
    /// As a file, which comes along.
    HandOver,
}

/// What the source says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) session: Session,
    pub(super) memory: u64,
    pub(super) cpus: u8,
    pub(super) transfer: Transfer,
}

/// Something that is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A machine wants to come.
    Hello(Hello),
    /// It may.
    Welcome(Instance),
    /// It may not, or cannot go on here.
    Refused(String),
    /// One more connection, of this number, for the memory of a machine.
    Join(Session, u8),
    /// Memory from the page of this number on.
    Pages(u64, Vec<u8>),
    /// So many pages of zeros.
    Zeros(u64, u32),
    /// There is no more to come.
    End,
    /// Everything but memory.
    Records(Records),
    /// The machine could run.
    Prepared,
    /// It is the target's from now on.
    Commit(Session),
    /// It runs.
    Committed,
    /// It never ran here, and never will.
    Unknown(Instance),
    /// The source keeps it.
    Abort,
}

/// What is wrong with a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("The stream is damaged, or not one of a migration: {0}")]
pub(super) struct Damaged(pub(super) &'static str);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    kind: U32,
    length: U32,
    /// CRC-32 of the body.
    body: U32,
    /// CRC-32 of the header up to here.
    check: U32,
}

impl Header {
    fn checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32fast::hash(&bytes[..HEADER - size_of::<U32>()])
    }
}

/// Kinds of sections with their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Kind {
    Hello = 1,
    Welcome,
    Refused,
    Join,
    Pages,
    Zeros,
    End,
    Records,
    Prepared,
    Commit,
    Committed,
    Unknown,
    Abort,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Hello,
        Self::Welcome,
        Self::Refused,
        Self::Join,
        Self::Pages,
        Self::Zeros,
        Self::End,
        Self::Records,
        Self::Prepared,
        Self::Commit,
        Self::Committed,
        Self::Unknown,
        Self::Abort,
    ];

    const fn bound(self) -> usize {
        match self {
            Self::Pages => FIRST + MAX_PAGES * PAGE,
            Self::Records => MAX_RECORDS,
            _ => MAX_SHORT,
        }
    }
}

/// A header that was checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    kind: Kind,
    length: usize,
    checksum: u32,
}

impl Head {
    /// Reads a header.
    pub(super) fn parse(bytes: &[u8; HEADER]) -> Result<Self, Damaged> {
        let header = Header::read_from_bytes(bytes).map_err(|_| Damaged("a header is too short"))?;
        if header.magic != MAGIC || header.check.get() != header.checksum() {
            return Err(Damaged("a header is wrong"));
        }
        let known = Kind::ALL.into_iter().find(|kind| *kind as u32 == header.kind.get());
        let kind = known.ok_or(Damaged("a section is of unknown kind"))?;
        let length = usize::try_from(header.length.get()).unwrap_or(usize::MAX);
        if length > kind.bound() {
            return Err(Damaged("a section is too long"));
        }
        Ok(Self { kind, length, checksum: header.body.get() })
    }

    /// Bytes of the body.
    pub(super) const fn length(&self) -> usize {
        self.length
    }

    /// Reads the body that followed the header.
    pub(super) fn open(&self, body: &[u8]) -> Result<Message, Damaged> {
        if body.len() != self.length || crc32fast::hash(body) != self.checksum {
            return Err(Damaged("a section was changed on its way"));
        }
        Ok(match self.kind {
            Kind::Hello => Message::Hello(decode(body)?),
            Kind::Welcome => Message::Welcome(decode(body)?),
            Kind::Refused => Message::Refused(decode(body)?),
            Kind::Join => {
                let (session, index) = decode(body)?;
                Message::Join(session, index)
            }
            Kind::Pages => pages(body)?,
            Kind::Zeros => {
                let (first, count) = decode(body)?;
                Message::Zeros(first, count)
            }
            Kind::End => empty(body, Message::End)?,
            Kind::Records => Message::Records(decode(body)?),
            Kind::Prepared => empty(body, Message::Prepared)?,
            Kind::Commit => Message::Commit(decode(body)?),
            Kind::Committed => empty(body, Message::Committed)?,
            Kind::Unknown => Message::Unknown(decode(body)?),
            Kind::Abort => empty(body, Message::Abort)?,
        })
    }
}

const NONSENSE: Damaged = Damaged("a section makes no sense");

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Damaged> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err(NONSENSE),
    }
}

fn empty(body: &[u8], message: Message) -> Result<Message, Damaged> {
    if body.is_empty() { Ok(message) } else { Err(NONSENSE) }
}

fn pages(body: &[u8]) -> Result<Message, Damaged> {
    let (first, pages) = body.split_first_chunk::<FIRST>().ok_or(NONSENSE)?;
    if pages.is_empty() || !pages.len().is_multiple_of(PAGE) {
        return Err(NONSENSE);
    }
    Ok(Message::Pages(u64::from_le_bytes(*first), pages.to_vec()))
}

impl Message {
    /// The section, or `None` if it would be too long for a receiver.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let body = |kind, value: postcard::Result<Vec<u8>>| Some((kind, value.ok()?));
        let (kind, body) = match self {
            Self::Hello(hello) => body(Kind::Hello, postcard::to_allocvec(hello)),
            Self::Welcome(instance) => body(Kind::Welcome, postcard::to_allocvec(instance)),
            Self::Refused(why) => {
                let why = &why[..why.floor_char_boundary(MAX_SHORT / 2)];
                body(Kind::Refused, postcard::to_allocvec(why))
            }
            Self::Join(session, index) => body(Kind::Join, postcard::to_allocvec(&(session, index))),
            Self::Pages(first, pages) => {
                return Some(encode_pages(Vec::new(), *first, |buffer| buffer.extend_from_slice(pages)));
            }
            Self::Zeros(first, count) => body(Kind::Zeros, postcard::to_allocvec(&(first, count))),
            Self::End => Some((Kind::End, Vec::new())),
            Self::Records(records) => body(Kind::Records, postcard::to_allocvec(records)),
            Self::Prepared => Some((Kind::Prepared, Vec::new())),
            Self::Commit(session) => body(Kind::Commit, postcard::to_allocvec(session)),
            Self::Committed => Some((Kind::Committed, Vec::new())),
            Self::Unknown(instance) => body(Kind::Unknown, postcard::to_allocvec(instance)),
            Self::Abort => Some((Kind::Abort, Vec::new())),
        }?;
        if body.len() > kind.bound() {
            return None;
        }
        let mut section = vec![0; HEADER];
        section.extend_from_slice(&body);
        seal(&mut section, kind);
        Some(section)
    }
}

/// A section of pages in `buffer`, whose memory is used again; `fill` appends them.
pub(super) fn encode_pages(mut buffer: Vec<u8>, first: u64, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    buffer.clear();
    buffer.resize(HEADER, 0);
    buffer.extend_from_slice(&first.to_le_bytes());
    fill(&mut buffer);
    seal(&mut buffer, Kind::Pages);
    buffer
}

/// Writes the header of a section.
fn seal(section: &mut [u8], kind: Kind) {
    let Some((place, body)) = section.split_first_chunk_mut::<HEADER>() else { return };
    let mut header = Header {
        magic: MAGIC,
        kind: (kind as u32).into(),
        length: u32::try_from(body.len()).unwrap_or(u32::MAX).into(),
        body: crc32fast::hash(body).into(),
        check: 0.into(),
    };
    header.check = header.checksum().into();
    place.copy_from_slice(header.as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(section: &[u8]) -> Result<Message, Damaged> {
        let (header, body) = section.split_first_chunk().ok_or(NONSENSE)?;
        Head::parse(header)?.open(body)
    }

    fn messages() -> Vec<Message> {
        let (session, instance) = (Session([7; 16]), Instance([9; 16]));
        let transfer = Transfer::Copy { connections: 4 };
        vec![
            Message::Hello(Hello { version: VERSION, session, memory: 1 << 30, cpus: 2, transfer }),
            Message::Welcome(instance),
            Message::Refused("no room".into()),
            Message::Join(session, 3),
            Message::Pages(u64::MAX, vec![5; PAGE]),
            Message::Zeros(4, 100),
            Message::End,
            Message::Records(Records::default()),
            Message::Prepared,
            Message::Commit(session),
            Message::Committed,
            Message::Unknown(instance),
            Message::Abort,
        ]
    }

    #[test]
    fn messages_come_back_and_any_flipped_bit_is_noticed() {
        for message in messages() {
            let section = message.encode().unwrap();
            assert_eq!(read(&section).as_ref(), Ok(&message));
            for bit in 0..section.len().min(200) * 8 {
                let mut bad = section.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&bad).is_err(), "{message:?}, bit {bit}");
            }
        }
    }

    #[test]
    fn lengths_beyond_the_bound_of_their_kind_are_refused_before_the_body() {
        let mut section = vec![0; HEADER + MAX_SHORT + 1];
        seal(&mut section, Kind::Hello);
        assert!(Head::parse(section.first_chunk().unwrap()).is_err());
        let long = Message::Refused("é".repeat(MAX_SHORT));
        assert!(read(&long.encode().unwrap()).is_ok(), "reasons are cut");
    }

    #[test]
    fn parts_of_pages_and_bytes_left_over_are_refused() {
        for (kind, length) in
            [(Kind::Pages, 0), (Kind::Pages, FIRST), (Kind::Pages, FIRST + 1), (Kind::End, 1)]
        {
            let mut section = vec![0; HEADER + length];
            seal(&mut section, kind);
            assert!(read(&section).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_body_is_read_without_panic(kind in 0..Kind::ALL.len(), body: Vec<u8>) {
            let mut section = [vec![0; HEADER], body].concat();
            seal(&mut section, Kind::ALL[kind]);
            let _ = read(&section);
        }
    }
}

//! The messages between harness and agent.
//!
//! Encoded with postcard. Harness and agent are built from one source tree and the agent travels into the guest
//! with each run, so there is no version to negotiate.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::link::MAX_MESSAGE;

/// Names one command of one guest; the harness counts them up and never uses one twice.
pub type CommandId = u32;

/// Longest piece of a program's output in one [`Report::Output`], in bytes.
pub const MAX_OUTPUT: usize = 16 * 1024;

/// What the harness asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Start a program beside those that run already.
    Exec(Exec),
    /// Bytes for the standard input of a command that was started with one; none means end of file.
    Input {
        /// The command they are for.
        id: CommandId,
        /// At most [`MAX_OUTPUT`] bytes.
        bytes: Vec<u8>,
    },
    /// Send a signal to the process group of a command.
    Signal {
        /// The command.
        id: CommandId,
        /// Linux signal number.
        signal: i32,
    },
    /// Write dirty data back and switch the machine off.
    PowerOff,
    /// Write dirty data back and restart the machine.
    Reboot,
}

/// A program to start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Names it from now on.
    pub id: CommandId,
    /// Program, looked up in PATH, and its arguments.
    pub argv: Vec<String>,
    /// Added to the agent's own environment.
    pub env: Vec<(String, String)>,
    /// What its standard streams are.
    pub streams: Streams,
}

/// What a command's standard streams are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Streams {
    /// No input; output and errors apart.
    #[default]
    Output,
    /// Input by [`Request::Input`]; output and errors apart.
    Piped,
    /// A terminal of this many rows and columns; everything comes as [`Stream::Out`].
    Terminal {
        /// Rows.
        rows: u16,
        /// Columns.
        columns: u16,
    },
}

/// What the agent tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The guest is up. Sent once in each life of the guest.
    Ready {
        /// Host name.
        host: String,
        /// Kernel release, as `uname -r` prints it.
        kernel: String,
    },
    /// A piece of a command's output.
    Output {
        /// The command.
        id: CommandId,
        /// Which of its streams.
        stream: Stream,
        /// At most [`MAX_OUTPUT`] bytes.
        bytes: Vec<u8>,
    },
    /// A command has ended and all its output was sent.
    Ended {
        /// The command.
        id: CommandId,
        /// How it ended.
        ending: Ending,
    },
}

/// One of a program's output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// It exited with this status.
    Status(i32),
    /// This signal killed it.
    Signal(i32),
    /// It could not be started; the text says why.
    NotStarted(String),
}

/// A message that does not parse.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// It is no such message.
    #[error("Message on the guest's control line does not parse")]
    Content(#[from] postcard::Error),
    /// It does not unpack, or to more than a message may be.
    #[error("Message on the guest's control line does not unpack")]
    Packing,
}

/// First byte of a message as it is.
const PLAIN: u8 = 0;
/// First byte of a message that is packed (DEFLATE, RFC 1951).
const PACKED: u8 = 1;
/// Messages below this size are not worth packing.
const PACK_FROM: usize = 200;
/// Effort of packing, of ten: every byte of the line costs a nested guest more than a good search does.
const EFFORT: u8 = 6;

/// A message as bytes for [`crate::link::Link::send`]. Long ones are packed: an emulated serial line makes a guest
/// leave its CPU for every byte.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let plain = postcard::to_allocvec(message).expect("Messages hold only types that postcard can write");
    if plain.len() >= PACK_FROM {
        let packed = miniz_oxide::deflate::compress_to_vec(&plain, EFFORT);
        if packed.len() < plain.len() {
            return [&[PACKED], &packed[..]].concat();
        }
    }
    [&[PLAIN], &plain[..]].concat()
}

/// A message out of the bytes of a [`crate::link::Event::Message`].
///
/// # Errors
///
/// When the bytes are not such a message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    match bytes.split_first() {
        Some((&PLAIN, plain)) => Ok(postcard::from_bytes(plain)?),
        Some((&PACKED, packed)) => {
            let plain = miniz_oxide::inflate::decompress_to_vec_with_limit(packed, MAX_MESSAGE)
                .map_err(|_| Malformed::Packing)?;
            Ok(postcard::from_bytes(&plain)?)
        }
        _ => Err(Malformed::Packing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_survives_encoding() {
        let request = Request::Exec(Exec {
            id: 7,
            argv: vec!["ibv_devinfo".into(), "-v".into()],
            env: vec![("A".into(), "10.0.0.1".into())],
            streams: Streams::Terminal { rows: 24, columns: 80 },
        });
        assert_eq!(decode::<Request>(&encode(&request)).unwrap(), request);
    }

    #[test]
    fn long_text_gets_shorter_on_the_line_and_survives() {
        let bytes = b"[    1.234567] pci 0000:00:03.1: [15ad:0820] type 00 class 0x028000\n".repeat(60);
        let report = Report::Output { id: 1, stream: Stream::Out, bytes: bytes.clone() };
        let encoded = encode(&report);
        assert!(encoded.len() < bytes.len() / 4);
        assert_eq!(decode::<Report>(&encoded).unwrap(), report);
    }

    #[test]
    fn packed_message_cannot_grow_without_bound() {
        let bomb = miniz_oxide::deflate::compress_to_vec(&vec![0; 100 * MAX_MESSAGE], 10);
        assert!(decode::<Report>(&[&[PACKED], &bomb[..]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Report>(&bytes);
            let _ = decode::<Request>(&bytes);
        }
    }
}

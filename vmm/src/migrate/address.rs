//! Where a machine is received: `unix:PATH` or `tcp:HOST:PORT`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use host_io::tls::{Files, TlsError};

use crate::error::Error;

/// Where a machine is received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket file of this host.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

/// A text that is no such place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no place to receive a machine at: write unix:PATH or tcp:HOST:PORT")]
pub struct ParseAddressError(String);

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseAddressError(text.to_owned());
        match text.split_once(':').ok_or_else(error)? {
            ("unix", path) if !path.is_empty() => Ok(Self::Unix(path.into())),
            ("tcp", place) => {
                let (host, port) = place.rsplit_once(':').ok_or_else(error)?;
                let usable = !host.is_empty() && port.parse::<u16>().is_ok();
                if usable { Ok(Self::Tcp(place.to_owned())) } else { Err(error()) }
            }
            _ => Err(error()),
        }
    }
}

impl Address {
    /// What `make` makes of the files, if there are any; they are of use for TCP only.
    pub(super) fn secured<T>(
        &self,
        files: Option<&Files>,
        make: impl FnOnce(&Files) -> Result<T, TlsError>,
    ) -> Result<Option<T>, Error> {
        match (self, files) {
            (_, None) => Ok(None),
            (Self::Unix(_), Some(_)) => Err(Error::Usage(
                "--tls is for tcp:HOST:PORT; a socket file never leaves this host".to_owned(),
            )),
            (Self::Tcp(_), Some(files)) => make(files).map(Some).map_err(|e| Error::Usage(e.to_string())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(place) => write!(f, "tcp:{place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_mistakes() {
        for text in ["unix:/tmp/x", "tcp:0.0.0.0:4000", "tcp:[::1]:0", "tcp:host:1"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "x", "unix:", "tcp:", "tcp:host", "tcp:host:x", "tcp::1", "udp:h:1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}

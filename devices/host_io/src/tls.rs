//! TLS 1.3 between two ends that both have to prove who they are.
//!
//! Each end has a certificate, its key, and the certificate of the authority that the other end's must be signed by. There
//! is no other way to be trusted: no authorities of the system, no end without a certificate.

use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde::Deserialize;

/// PEM files that tell who this end is and whom it trusts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// This end's certificate, with those that lead to the authority's, if there are any between.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that signs the other end's certificate.
    pub ca: PathBuf,
    /// The name or address in the certificate of whom is dialled, if it is not what is dialled.
    #[serde(default)]
    pub name: Option<String>,
}

/// Why TLS cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not there, or not what it should be.
    #[error("Cannot use {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// A file has no certificate.
    #[error("{0} has no certificate")]
    Empty(PathBuf),
    /// Certificate and key do not fit each other, or nobody can be trusted by them.
    #[error("Certificate, key and authority cannot be used: {0}")]
    Unusable(String),
    /// No certificate can name that.
    #[error("`{0}` is no name of a host: give one that its certificate has, as name=")]
    Name(String),
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        Self::Unusable(error.to_string())
    }
}

impl From<VerifierBuilderError> for TlsError {
    fn from(error: VerifierBuilderError) -> Self {
        Self::Unusable(error.to_string())
    }
}

/// Whether an error is one of TLS rather than of the connection below.
pub fn is_refusal(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<rustls::Error>())
}

/// An end that dials.
#[derive(Clone, Debug)]
pub struct Client {
    config: Arc<ClientConfig>,
    name: Option<String>,
}

impl Client {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// When one of them cannot be used.
    pub fn new(files: &Files) -> Result<Self, TlsError> {
        let provider = provider();
        let verifier =
            WebPkiServerVerifier::builder_with_provider(authority(&files.ca)?, Arc::clone(&provider));
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_webpki_verifier(verifier.build()?)
            .with_client_auth_cert(certificates(&files.cert)?, key(&files.key)?)?;
        Ok(Self { config: Arc::new(config), name: files.name.clone() })
    }

    /// What goes over a connection to `host`. Hands are shaken when the first bytes go either way.
    ///
    /// # Errors
    ///
    /// When no certificate can have that name.
    pub fn dial(
        &self,
        socket: TcpStream,
        host: &str,
    ) -> Result<StreamOwned<ClientConnection, TcpStream>, TlsError> {
        let name = self.name.as_deref().unwrap_or(host);
        let parsed = ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))?;
        Ok(StreamOwned::new(ClientConnection::new(Arc::clone(&self.config), parsed)?, socket))
    }
}

/// An end that is dialled.
#[derive(Clone, Debug)]
pub struct Server {
    config: Arc<ServerConfig>,
}

impl Server {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// When one of them cannot be used.
    pub fn new(files: &Files) -> Result<Self, TlsError> {
        let provider = provider();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(authority(&files.ca)?, Arc::clone(&provider));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier.build()?)
            .with_single_cert(certificates(&files.cert)?, key(&files.key)?)?;
        Ok(Self { config: Arc::new(config) })
    }

    /// What goes over a connection that was accepted. Hands are shaken when the first bytes go either way.
    ///
    /// # Errors
    ///
    /// When the files turn out to be of no use.
    pub fn accept(&self, socket: TcpStream) -> Result<StreamOwned<ServerConnection, TcpStream>, TlsError> {
        Ok(StreamOwned::new(ServerConnection::new(Arc::clone(&self.config))?, socket))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn authority(path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store.add(certificate)?;
    }
    Ok(Arc::new(store))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|source| TlsError::File { path: path.to_owned(), source })?;
    if found.is_empty() { Err(TlsError::Empty(path.to_owned())) } else { Ok(found) }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| TlsError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    struct Authority {
        dir: tempfile::TempDir,
        issuer: Issuer<'static, KeyPair>,
    }

    impl Authority {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            fs::write(dir.path().join("ca"), params.self_signed(&key).unwrap().pem()).unwrap();
            Self { dir, issuer: Issuer::new(params, key) }
        }

        fn files(&self, name: &str) -> Files {
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new([name.to_owned()]).unwrap();
            let path = |kind: &str| self.dir.path().join(format!("{name}.{kind}"));
            fs::write(path("cert"), certificate.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
            fs::write(path("key"), key.serialize_pem()).unwrap();
            Files { cert: path("cert"), key: path("key"), ca: self.dir.path().join("ca"), name: None }
        }
    }

    /// What either end gets of what the other says.
    fn talk(client: &Files, server: &Files) -> [io::Result<Vec<u8>>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::new(server).unwrap();
        let serving = thread::spawn(move || {
            let mut stream = server.accept(listener.accept().unwrap().0).unwrap();
            exchange(&mut stream, b"here")
        });
        let socket = TcpStream::connect(address).unwrap();
        let mut stream = Client::new(client).unwrap().dial(socket, "127.0.0.1").unwrap();
        let called = exchange(&mut stream, b"call");
        drop(stream);
        [called, serving.join().unwrap()]
    }

    fn exchange(stream: &mut (impl Read + Write), words: &[u8; 4]) -> io::Result<Vec<u8>> {
        let mut heard = vec![0; 4];
        stream.write_all(words)?;
        stream.flush()?;
        stream.read_exact(&mut heard)?;
        Ok(heard)
    }

    #[test]
    fn ends_of_one_authority_hear_each_other() {
        let authority = Authority::new();
        let [called, served] = talk(&authority.files("client"), &authority.files("127.0.0.1"));
        assert_eq!((called.unwrap(), served.unwrap()), (b"here".to_vec(), b"call".to_vec()));
    }

    #[test]
    fn name_may_be_another_than_what_is_dialled() {
        let authority = Authority::new();
        let client = Files { name: Some("there".into()), ..authority.files("client") };
        assert!(talk(&client, &authority.files("there")).iter().all(Result::is_ok));
        let [called, served] = talk(&authority.files("client"), &authority.files("there"));
        assert!(is_refusal(&called.unwrap_err()));
        assert!(served.is_err());
    }

    #[test]
    fn strangers_are_refused_by_either_end() {
        let (authority, other) = (Authority::new(), Authority::new());
        let trusting = Files { ca: other.dir.path().join("ca"), ..authority.files("client") };
        for client in [authority.files("client"), trusting] {
            let [called, served] = talk(&client, &other.files("127.0.0.1"));
            assert!(called.is_err() && served.is_err(), "{called:?} {served:?}");
        }
    }

    #[test]
    fn files_that_are_of_no_use_are_named() {
        let authority = Authority::new();
        let good = authority.files("a");
        let nowhere = Files { key: "/nonexistent".into(), ..good.clone() };
        assert!(Client::new(&nowhere).unwrap_err().to_string().contains("/nonexistent"));
        let swapped = Files { cert: good.key.clone(), ..good.clone() };
        assert!(Server::new(&swapped).unwrap_err().to_string().contains("has no certificate"));
        let foreign = Files { key: authority.files("b").key, ..good };
        assert!(Server::new(&foreign).unwrap_err().to_string().contains("cannot be used"));
    }
}

//! Certificates for TLS.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Signs certificates.
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Puts its files into a directory that it has for itself.
    pub fn new(dir: PathBuf) -> Self {
        fs::create_dir(&dir).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        fs::write(dir.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    /// What `--tls` has to say for an end of this name.
    pub fn sign(&self, name: &str) -> String {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap();
        let path = |kind: &str| self.dir.join(format!("{name}.{kind}"));
        fs::write(path("pem"), certificate.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(path("key"), key.serialize_pem()).unwrap();
        let [cert, key, ca] = [path("pem"), path("key"), self.dir.join("ca.pem")];
        format!("cert={},key={},ca={}", cert.display(), key.display(), ca.display())
    }
}

//! The configuration file: TOML or JSON, by its name's ending.

use std::fs;
use std::path::Path;

use super::RunOptions;
use crate::error::{Error, Result};

impl RunOptions {
    /// Reads a configuration file: JSON if its name ends in `.json`, TOML otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] with the place in the file and what was expected there.
    pub fn from_file(path: &Path) -> Result<Self> {
        let usage = |why: String| Error::Usage(format!("Configuration file {}: {why}", path.display()));
        let text = fs::read_to_string(path).map_err(|e| usage(e.to_string()))?;
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
            serde_json::from_str(&text).map_err(|e| usage(e.to_string()))
        } else {
            toml::from_str(&text).map_err(|e| usage(e.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::values::ByteSize;
    use super::*;

    fn read(ending: &str, text: &str) -> Result<RunOptions> {
        let mut file = tempfile::Builder::new().suffix(ending).tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        RunOptions::from_file(file.path())
    }

    #[test]
    fn toml_and_json_mean_the_same() {
        let toml = r#"
            kernel = "vmlinuz"
            cpus = 2
            on-reboot = "exit"
            rng = false
            api-socket = "/run/api"
            memory = { size = "2G", hugepages = true }
            [[disk]]
            path = "a.img"
            readonly = "on"
            [[net]]
            link = "switch:/run/s"
        "#;
        let json = r#"{"kernel": "vmlinuz", "cpus": 2, "on-reboot": "exit", "rng": "off", "api-socket": "/run/api",
            "memory": {"size": 2147483648, "hugepages": "on"},
            "disk": [{"path": "a.img", "readonly": true}], "net": [{"link": "switch:/run/s"}]}"#;
        let options = read(".toml", toml).unwrap();
        assert_eq!(options, read(".json", json).unwrap());
        assert_eq!(options.memory.unwrap().size, ByteSize(2 << 30));
        assert!(options.disk[0].readonly && options.net[0].rdma);
    }

    #[test]
    fn unknown_key_is_named() {
        let error = read(".toml", "kernle = \"x\"").unwrap_err();
        assert!(error.to_string().contains("kernle"), "{error}");
    }

    #[test]
    fn flags_win_and_their_lists_replace() {
        let file = read(".toml", "kernel = \"a\"\ncpus = 2\n[[disk]]\npath = \"a.img\"").unwrap();
        let disk = super::super::key_value::parse("b.img").unwrap();
        let flags = RunOptions { cpus: Some(4), disk: vec![disk], ..RunOptions::default() };
        let options = flags.over(file);
        assert_eq!(options.kernel.as_deref(), Some(Path::new("a")));
        assert_eq!(options.cpus, Some(4));
        assert_eq!(options.disk.len(), 1);
        assert_eq!(options.disk[0].path, Path::new("b.img"));
    }
}

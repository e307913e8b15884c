//! Questions to the package archive, asked through apt with private state.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cache::Cache;
use crate::command;
use crate::error::{Error, Named, Result};
use crate::packages::Package;

/// Age after which the archive's index is fetched again before versions are chosen.
const INDEX_AGE: Duration = Duration::from_secs(3600);

/// Where apt sources of the host lie.
const HOST_SOURCES: &str = "/etc/apt/sources.list.d";

/// Signs Debian's archives.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Debian 12's archive of newer versions. Nothing is taken from it unless a closure asks for that.
pub(crate) const BACKPORTS: &str = "bookworm-backports";

/// The archive that the host's apt sources name, and its backports, seen as by a machine with nothing installed.
pub(crate) struct Archive {
    options: Vec<String>,
}

impl Archive {
    /// Opens the archive, fetching its index if there is none or only an old one.
    pub(crate) fn open(cache: &Cache) -> Result<Self> {
        let _lock = cache.lock("apt")?;
        let root = cache.root().join("apt");
        let state = root.join("state");
        for dir in ["state/lists/partial", "cache/archives/partial", "sources"].map(|dir| root.join(dir)) {
            fs::create_dir_all(&dir).named("create", dir)?;
        }
        let status = state.join("status");
        fs::write(&status, "").named("write", &status)?;
        let archive = Self { options: options(&root) };
        let stamp = stamp(cache);
        if archive.add_sources(&root.join("sources"))? || !is_recent(&stamp) {
            cache.say("fetching the package archive's index");
            // One broken source of the host's list must not stop us: what cannot be found later is reported by name.
            let _ = command::run(archive.apt("apt-get").arg("update"));
            fs::write(&stamp, "").named("write", stamp)?;
        }
        Ok(archive)
    }

    /// Makes the next use of the archive fetch its index.
    pub(crate) fn expire(cache: &Cache) -> Result<()> {
        match fs::remove_file(stamp(cache)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).named("remove", stamp(cache))
            }
            _ => Ok(()),
        }
    }

    /// The index entry of `package`, which is a name or `name=version`.
    pub(crate) fn entry(&self, package: &str) -> Result<Entry> {
        let text = command::text(self.apt("apt-cache").args(["show", "--no-all-versions", package]));
        let missing = || Error::Archive {
            problem: format!("has no {package}"),
            remedy: "check that this machine's apt sources name Debian 12 with its security archive, \
                     then run `./dev images update`",
        };
        let text = text.map_err(|_| missing())?;
        Entry::parse_all(&text).into_iter().next().ok_or_else(missing)
    }

    /// `names` and everything they depend on, recommendations left out; newest versions of `release`, if that is given.
    pub(crate) fn closure(&self, names: &[String], release: Option<&str>) -> Result<Vec<Package>> {
        let mut apt = self.apt("apt-get");
        apt.args(["install", "--yes", "--no-install-recommends", "--print-uris"]).args(names);
        apt.args(release.map(|release| format!("--target-release={release}")));
        let listed = listed_files(&command::text(&mut apt)?);
        let mut show = self.apt("apt-cache");
        show.args(["show", "--no-all-versions"]);
        show.args(listed.iter().map(|(name, version)| format!("{name}={version}")));
        let entries = Entry::parse_all(&command::text(&mut show)?);
        let known: HashMap<_, _> = entries.iter().map(|entry| (entry.field("Package"), entry)).collect();
        let find = |name: &str| match known.get(name) {
            Some(entry) => entry.package(),
            None => self.entry(name)?.package(),
        };
        listed.iter().map(|(name, _)| find(name)).collect()
    }

    /// Names of the packages that every system has: those marked essential.
    pub(crate) fn essential(&self) -> Result<Vec<String>> {
        let all = command::text(self.apt("apt-cache").arg("dumpavail"))?;
        let mut names: Vec<_> = all
            .split("\n\n")
            .filter(|stanza| stanza.contains("\nEssential: yes\n"))
            .map(|stanza| Entry::parse(stanza).field("Package").to_owned())
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// An index of `packages` for a repository in which all of them lie side by side.
    pub(crate) fn index_of(&self, packages: &[Package]) -> Result<String> {
        let mut show = self.apt("apt-cache");
        show.args(["show", "--no-all-versions"]);
        show.args(packages.iter().map(|package| format!("{}={}", package.name, package.version)));
        let text = command::text(&mut show)?;
        let flat = |stanza: &str| {
            let file = Entry::parse(stanza).package()?.file;
            let kept = stanza.lines().filter(|line| !line.starts_with("Filename: "));
            Ok(kept.collect::<Vec<_>>().join("\n") + "\nFilename: ./" + &file + "\n")
        };
        let stanzas: Result<Vec<_>> =
            text.split("\n\n").filter(|stanza| !stanza.is_empty()).map(flat).collect();
        Ok(stanzas?.join("\n"))
    }

    /// Downloads packages into `dir`.
    pub(crate) fn download(&self, packages: &[&Package], dir: &Path) -> Result<()> {
        let wanted = packages.iter().map(|package| format!("{}={}", package.name, package.version));
        command::run(self.apt("apt-get").arg("download").args(wanted).current_dir(dir))
    }

    /// Collects the host's sources, and adds the backports from the same mirror if they are not among them. Gives whether
    /// anything changed.
    fn add_sources(&self, dir: &Path) -> Result<bool> {
        let mut changed = false;
        for entry in fs::read_dir(HOST_SOURCES).into_iter().flatten().flatten() {
            let link = dir.join(entry.file_name());
            if !fs::exists(&link).named("look for", &link)? {
                symlink(entry.path(), &link).named("create", &link)?;
                changed = true;
            }
        }
        let mut apt = self.apt("apt-get");
        apt.args(["indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"]);
        if let Some(line) = backports(&command::text(&mut apt)?) {
            let path = dir.join("backports.list");
            fs::write(&path, line).named("write", path)?;
            changed = true;
        }
        Ok(changed)
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(&self.options);
        command
    }
}

fn options(root: &Path) -> Vec<String> {
    let root = root.display();
    [
        format!("Dir::State={root}/state"),
        format!("Dir::State::status={root}/state/status"),
        format!("Dir::Cache={root}/cache"),
        format!("Dir::Etc::sourceparts={root}/sources"),
        "Acquire::Languages=none".to_owned(),
        // As root, apt would drop to a user that may not enter the build directory.
        "APT::Sandbox::User=root".to_owned(),
        "Debug::NoLocking=1".to_owned(),
    ]
    .into_iter()
    .flat_map(|option| ["-o".to_owned(), option])
    .chain(["-qq".to_owned()])
    .collect()
}

fn stamp(cache: &Cache) -> PathBuf {
    cache.root().join("apt/updated")
}

fn is_recent(stamp: &Path) -> bool {
    let age = fs::metadata(stamp).and_then(|data| data.modified()).ok().and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age < INDEX_AGE)
}

/// The source of the backports, unless `targets` has them or no mirror of Debian 12: lines with release, component and
/// address.
fn backports(targets: &str) -> Option<String> {
    let mirror = |release: &str| {
        let prefix = format!("{release} main ");
        targets.lines().find_map(|line| line.strip_prefix(&prefix))
    };
    if mirror(BACKPORTS).is_some() {
        return None;
    }
    let mirror = mirror("bookworm")?;
    Some(format!("deb [signed-by={KEYRING}] {mirror} {BACKPORTS} main\n"))
}

/// Name and version of each file that `apt-get --print-uris` would fetch.
fn listed_files(text: &str) -> Vec<(String, String)> {
    let files = text.lines().filter(|line| line.starts_with('\'')).filter_map(|line| line.split(' ').nth(1));
    files
        .filter_map(|file| {
            let mut parts = file.split('_');
            Some((parts.next()?.to_owned(), parts.next()?.replace("%3a", ":")))
        })
        .collect()
}

/// One stanza of the archive's index.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    fields: BTreeMap<String, String>,
}

impl Entry {
    fn parse_all(text: &str) -> Vec<Self> {
        text.split("\n\n").map(Self::parse).filter(|entry| !entry.fields.is_empty()).collect()
    }

    fn parse(stanza: &str) -> Self {
        let lines = stanza.lines().filter(|line| !line.starts_with(' '));
        let fields = lines.filter_map(|line| line.split_once(": "));
        Self { fields: fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect() }
    }

    /// A field's value, empty if the stanza has no such field.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// Names in `Depends`, of alternatives the first.
    pub(crate) fn dependencies(&self) -> impl Iterator<Item = &str> {
        self.field("Depends").split(", ").filter_map(|one| one.split([' ', ':']).next())
    }

    pub(crate) fn package(&self) -> Result<Package> {
        let (name, version, sha256) = (self.field("Package"), self.field("Version"), self.field("SHA256"));
        if sha256.is_empty() {
            return Err(Error::Archive {
                problem: format!("gives no SHA-256 for {name} {version}"),
                remedy: "check this machine's apt sources",
            });
        }
        let file = format!("{name}_{}_{}.deb", version.replace(':', "%3a"), self.field("Architecture"));
        Ok(Package { name: name.to_owned(), version: version.to_owned(), sha256: sha256.to_owned(), file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_entry_gives_package_and_dependencies() {
        let text = "Package: perl\nVersion: 1:2-3\nArchitecture: amd64\nDepends: a (>= 2), b:any | c\n\
                    Description: x\n more: text\nSHA256: 00ff\n\nPackage: two\n";
        let entries = Entry::parse_all(text);
        assert_eq!(entries.len(), 2);
        let package = entries[0].package().unwrap();
        assert_eq!((package.version.as_str(), package.file.as_str()), ("1:2-3", "perl_1%3a2-3_amd64.deb"));
        assert_eq!(entries[0].dependencies().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(entries[0].field("more"), "");
        assert!(entries[1].package().is_err());
    }

    #[test]
    fn backports_come_from_the_mirror_that_the_host_uses() {
        let line = backports("bookworm-security main http://s/\nbookworm main http://m/debian/\n").unwrap();
        assert!(line.ends_with("] http://m/debian/ bookworm-backports main\n"), "{line}");
        assert_eq!(backports("bookworm main http://m/\nbookworm-backports main http://b/\n"), None);
        assert_eq!(backports("trixie main http://m/\n"), None);
    }

    #[test]
    fn printed_uris_give_names_and_versions() {
        let text =
            "NOTE: x\n'http://h/libpci3_3.9_amd64.deb' libpci3_1%3a3.9.0-4_amd64.deb 67432 MD5Sum:00\n";
        assert_eq!(listed_files(text), [("libpci3".to_owned(), "1:3.9.0-4".to_owned())]);
    }
}

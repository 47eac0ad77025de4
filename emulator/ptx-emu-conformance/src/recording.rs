//! The outputs of a family's probes on a device, as one file.
//!
//! Layout: one line of JSON (format, family, device, driver, and for each probe its
//! name, checksum, length and the checksum of its output), a line feed, then the
//! outputs in the same order. Checksums are 64-bit FNV-1a in hexadecimal.

use super::probe::{Checksum, Family, Probe};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The results of a family's probes on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// Family.
    pub family: Family,
    /// Product name of the device.
    pub device: String,
    /// Its architecture, `sm_90a`.
    pub arch: String,
    /// Driver and CUDA version.
    pub driver: String,
    /// Probes, in the order in which they ran.
    pub probes: Vec<RecordedProbe>,
}

/// The result of a probe on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedProbe {
    /// [`Probe::name`].
    pub name: String,
    /// [`Probe::checksum`] at the time.
    pub checksum: u64,
    /// The output buffer after the launch.
    pub output: Vec<u8>,
}

/// A recording that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file system.
    #[error("{}: {source}", .path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The header is not what it should be.
    #[error("{}: header: {source}", .path.display())]
    Header {
        /// File.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
    /// Contents that contradict the header.
    #[error("{}: {field}: required {required}, actual {actual}", .path.display())]
    Contents {
        /// File.
        path: PathBuf,
        /// The field.
        field: String,
        /// The value of the header or the reader.
        required: String,
        /// The value that was found.
        actual: String,
    },
}

/// Version of the layout.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    family: String,
    device: String,
    arch: String,
    driver: String,
    probes: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    name: String,
    bytes: usize,
    probe: String,
    output: String,
}

fn hex(sum: u64) -> String {
    format!("{sum:016x}")
}

impl Recording {
    /// The file of a family in a folder of recordings.
    #[must_use]
    pub fn path(folder: &Path, family: Family) -> PathBuf {
        folder.join(format!("{family}.rec"))
    }

    /// The recorded output of a probe.
    #[must_use]
    pub fn of(&self, probe: &Probe) -> Option<&RecordedProbe> {
        self.probes.iter().find(|recorded| recorded.name == probe.name)
    }

    /// Writes the file, by way of a temporary one beside it.
    ///
    /// # Errors
    /// [`RecordingError::Io`].
    pub fn write(&self, folder: &Path) -> Result<PathBuf, RecordingError> {
        let path = Self::path(folder, self.family);
        let failed = |source| RecordingError::Io { path: path.clone(), source };
        let header = Header {
            format: FORMAT,
            family: self.family.name().into(),
            device: self.device.clone(),
            arch: self.arch.clone(),
            driver: self.driver.clone(),
            probes: self.probes.iter().map(entry).collect(),
        };
        let mut bytes = serde_json::to_vec(&header).map_err(|error| failed(error.into()))?;
        bytes.push(b'\n');
        for probe in &self.probes {
            bytes.extend_from_slice(&probe.output);
        }
        std::fs::create_dir_all(folder).map_err(failed)?;
        let temporary = path.with_extension("tmp");
        std::fs::write(&temporary, bytes).map_err(failed)?;
        std::fs::rename(&temporary, &path).map_err(failed)?;
        Ok(path)
    }

    /// Reads the recording of a family, or `None` if the folder has none.
    ///
    /// # Errors
    /// A file that cannot be read, or is not whole.
    pub fn read(folder: &Path, family: Family) -> Result<Option<Self>, RecordingError> {
        let path = Self::path(folder, family);
        match std::fs::read(&path) {
            Ok(bytes) => Self::parse(&bytes, family, &path).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(RecordingError::Io { path, source }),
        }
    }

    fn parse(bytes: &[u8], family: Family, path: &Path) -> Result<Self, RecordingError> {
        let wrong = |field: &str, required: String, actual: String| RecordingError::Contents {
            path: path.to_owned(),
            field: field.to_owned(),
            required,
            actual,
        };
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            return Err(wrong("header", "a line".into(), "no line feed".into()));
        };
        let header: Header = serde_json::from_slice(&bytes[..end])
            .map_err(|source| RecordingError::Header { path: path.to_owned(), source })?;
        if header.format != FORMAT {
            return Err(wrong("format", FORMAT.to_string(), header.format.to_string()));
        }
        if header.family != family.name() {
            return Err(wrong("family", family.name().into(), header.family));
        }
        let mut rest = &bytes[end + 1..];
        let mut probes = Vec::with_capacity(header.probes.len());
        for entry in header.probes {
            let Some((output, tail)) = rest.split_at_checked(entry.bytes) else {
                let required = format!("{} bytes", entry.bytes);
                return Err(wrong(&entry.name, required, format!("{} bytes", rest.len())));
            };
            rest = tail;
            let actual = hex(Checksum::of(output));
            if actual != entry.output {
                let field = format!("{}: checksum of the output", entry.name);
                return Err(wrong(&field, entry.output, actual));
            }
            let checksum = u64::from_str_radix(&entry.probe, 16).map_err(|_| {
                let field = format!("{}: checksum of the probe", entry.name);
                wrong(&field, "a hexadecimal number".into(), entry.probe.clone())
            })?;
            probes.push(RecordedProbe { name: entry.name, checksum, output: output.to_vec() });
        }
        if !rest.is_empty() {
            return Err(wrong("end", "no bytes left".into(), format!("{} bytes", rest.len())));
        }
        Ok(Self { family, device: header.device, arch: header.arch, driver: header.driver, probes })
    }
}

fn entry(probe: &RecordedProbe) -> Entry {
    Entry {
        name: probe.name.clone(),
        bytes: probe.output.len(),
        probe: hex(probe.checksum),
        output: hex(Checksum::of(&probe.output)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Recording {
        let probe = |name: &str, output: &[u8]| RecordedProbe {
            name: name.into(),
            checksum: 0xfedc_ba98_7654_3210,
            output: output.into(),
        };
        Recording {
            family: Family::Bits,
            device: "a device".into(),
            arch: "sm_90a".into(),
            driver: "13.0".into(),
            probes: vec![probe("a", b"12\n4"), probe("b", b""), probe("c", b"xyz")],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = std::env::temp_dir().join(format!("ptx-emu-rec-{}", std::process::id()));
        let written = sample().write(&folder).expect("writable");
        assert_eq!(written, folder.join("bits.rec"));
        let read = Recording::read(&folder, Family::Bits).expect("readable");
        assert_eq!(read, Some(sample()));
        assert_eq!(Recording::read(&folder, Family::Warp).expect("no file is no error"), None);
        std::fs::remove_dir_all(&folder).expect("removable");
    }

    #[test]
    fn damage_is_noticed() {
        let folder = std::env::temp_dir().join(format!("ptx-emu-bad-{}", std::process::id()));
        let path = sample().write(&folder).expect("writable");
        let bytes = std::fs::read(&path).expect("readable");
        std::fs::remove_dir_all(&folder).expect("removable");
        let parse = |bytes: &[u8]| Recording::parse(bytes, Family::Bits, Path::new("f"));
        assert!(parse(&bytes).is_ok());
        let head = bytes.iter().position(|&byte| byte == b'\n').expect("a header");
        for cut in [0, head, head + 3, bytes.len() - 1] {
            assert!(parse(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        for at in head + 1..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let error = parse(&damaged).expect_err("a flipped bit").to_string();
            assert!(error.contains("checksum"), "byte {at}: {error}");
        }
        let longer = [&bytes[..], b"!"].concat();
        assert!(parse(&longer).is_err());
        let error = Recording::parse(&bytes, Family::Warp, Path::new("f")).expect_err("family");
        assert_eq!(error.to_string(), "f: family: required warp, actual bits");
    }
}

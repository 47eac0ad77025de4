//! Checksums of results that must stay the same when the source changes, and the files that hold
//! them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ptx_emu::Schedule;

/// Names the variable that asks for the files to be rewritten.
pub const WRITE: &str = "NVFP4_WRITE_CHECKSUMS";
/// Names the variable with the schedule that results are computed under, `eager` if absent. The
/// checksums are the same under all.
pub const SCHEDULE: &str = "NVFP4_CHECKSUM_SCHEDULE";

/// The initial value of 64-bit FNV-1a.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
/// The multiplier of 64-bit FNV-1a.
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Computes 64-bit FNV-1a over the bytes of all parts in turn.
#[must_use]
pub fn fnv(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().copied().flatten();
    bytes.fold(OFFSET, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// Returns the schedule that [`SCHEDULE`] names.
#[must_use]
pub fn schedule() -> Schedule {
    std::env::var(SCHEDULE).map_or(Schedule::Eager, |text| {
        text.parse().unwrap_or_else(|e| panic!("{SCHEDULE}={text}: {e}"))
    })
}

/// The checksums of one operation's results on one architecture. Each key describes in plain
/// properties the product that was computed.
#[derive(Debug, Default)]
pub struct Checksums(BTreeMap<String, String>);

impl Checksums {
    /// Adds the result `parts`.
    ///
    /// # Panics
    /// If the key is taken.
    pub fn add(&mut self, key: String, parts: &[&[u8]]) {
        let sum = format!("{:016x}", fnv(parts));
        let before = self.0.insert(key.clone(), sum);
        assert!(before.is_none(), "two results have the key `{key}`");
    }

    fn path(name: &str) -> PathBuf {
        crate::root().join("tests/data/checksums").join(format!("{name}.json"))
    }

    /// Compares with the recorded file `name`, or rewrites it if [`WRITE`] is set.
    ///
    /// # Panics
    /// If any checksum differs, is not recorded, or is recorded and was not computed.
    pub fn compare(&self, name: &str) {
        let path = Self::path(name);
        let recorded: BTreeMap<String, String> = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).expect("valid JSON"),
            Err(_) => BTreeMap::new(),
        };
        let changed = self.0.iter().filter(|(key, sum)| recorded.get(*key) != Some(sum));
        let (changed, new): (Vec<_>, Vec<_>) =
            changed.map(|(key, _)| key).partition(|key| recorded.contains_key(*key));
        let gone: Vec<_> = recorded.keys().filter(|key| !self.0.contains_key(*key)).collect();
        println!("{name}: {} results, {} recorded", self.0.len(), recorded.len());
        if std::env::var_os(WRITE).is_some() {
            let mut text = serde_json::to_string_pretty(&self.0).expect("strings");
            text.push('\n');
            std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            println!(
                "{name}: rewritten, {} changed, {} new, {} gone",
                changed.len(),
                new.len(),
                gone.len()
            );
            return;
        }
        let mut text = String::new();
        for (what, keys) in
            [("other bits", changed), ("not recorded", new), ("recorded, not computed", gone)]
        {
            if !keys.is_empty() {
                text += &format!("{what}: {}\n", keys.len());
                keys.iter().take(20).for_each(|key| text += &format!("  {key}\n"));
            }
        }
        assert!(text.is_empty(), "{name}\n{text}{WRITE}=1 rewrites it");
    }
}

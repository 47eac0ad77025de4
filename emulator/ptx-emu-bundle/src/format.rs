//! `bundle.json` and the files beside it.

use super::{Allocation, BUNDLE_FILE, Bundle, BundleError, Compare, Expected, MapPlace, PlacedMap};
use ptx_emu_core::tensor_map::{ElementType, Fill, Interleave, L2Promotion, Swizzle, TensorMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// The module's name in a bundle that is written here.
pub const PTX_FILE: &str = "module.ptx";

/// An address or size: a JSON number, or a string with or without `0x`.
#[derive(Debug, Clone, Copy)]
struct Number(u64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        match Either::deserialize(deserializer) {
            Ok(Either::Number(number)) => Ok(Self(number)),
            Ok(Either::Text(text)) => {
                let parsed = match text.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16),
                    None => text.parse(),
                };
                parsed.map(Self).map_err(|_| {
                    serde::de::Error::custom(format!(
                        "required an unsigned 64-bit number, actual `{text}`"
                    ))
                })
            }
            Err(_) => Err(serde::de::Error::custom("required an unsigned 64-bit number")),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Description {
    ptx: PathBuf,
    entry: String,
    grid: [u32; 3],
    block: [u32; 3],
    #[serde(default)]
    cluster: Option<[u32; 3]>,
    #[serde(default)]
    dynamic_shared: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cooperative: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    programmatic: bool,
    params: String,
    #[serde(default)]
    memory: Vec<MemoryEntry>,
    #[serde(default)]
    tensor_maps: Vec<MapEntry>,
    #[serde(default)]
    expected: BTreeMap<String, ExpectedEntry>,
}

#[derive(Serialize, Deserialize)]
struct MemoryEntry {
    addr: Number,
    size: Number,
    #[serde(default)]
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct MapEntry {
    #[serde(rename = "in")]
    place: String,
    at: Number,
    dtype: String,
    #[serde(default)]
    rank: Option<usize>,
    addr: Number,
    dims: Vec<Number>,
    #[serde(default)]
    strides: Vec<Number>,
    #[serde(rename = "box")]
    box_dims: Vec<u32>,
    #[serde(default)]
    estrides: Option<Vec<u32>>,
    #[serde(default)]
    interleave: Option<String>,
    #[serde(default)]
    swizzle: Option<String>,
    #[serde(default)]
    l2: Option<String>,
    #[serde(default)]
    oob: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct ExpectedEntry {
    addr: Number,
    size: Number,
    file: PathBuf,
    #[serde(default)]
    compare: CompareEntry,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum CompareEntry {
    Word(String),
    Elements {
        dtype: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rtol: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        atol: Option<f64>,
    },
}

impl Default for CompareEntry {
    fn default() -> Self {
        Self::Word("exact".into())
    }
}

impl Bundle {
    /// Reads a bundle's folder.
    ///
    /// # Errors
    /// A file that is missing or does not fit; the message names the file or the
    /// field.
    pub fn read(folder: &Path) -> Result<Self, BundleError> {
        let path = folder.join(BUNDLE_FILE);
        let text = read(&path)?;
        let description: Description = serde_json::from_slice(&text)
            .map_err(|source| BundleError::Json { path: path.clone(), source })?;
        let ptx = folder.join(&description.ptx);
        let ptx = String::from_utf8(read(&ptx)?).map_err(|error| {
            BundleError::field("ptx", "UTF-8 text", error.utf8_error().to_string())
        })?;
        let mut memory = Vec::with_capacity(description.memory.len());
        for (index, entry) in description.memory.into_iter().enumerate() {
            let size = entry.size.0;
            let contents = match entry.file {
                Some(file) => Some(sized(folder, &file, size, &format!("memory[{index}].file"))?),
                None => None,
            };
            let name = match entry.name.is_empty() {
                true => format!("memory[{index}]"),
                false => entry.name,
            };
            memory.push(Allocation { addr: entry.addr.0, size, name, contents });
        }
        let mut expected = BTreeMap::new();
        for (name, entry) in description.expected {
            let field = format!("expected.{name}");
            let bytes = sized(folder, &entry.file, entry.size.0, &format!("{field}.file"))?;
            let compare = compare(&entry.compare, &field, bytes.len())?;
            expected.insert(name, Expected { addr: entry.addr.0, bytes, compare });
        }
        let maps = description.tensor_maps.iter().enumerate();
        Ok(Self {
            ptx,
            entry: description.entry,
            grid: description.grid,
            block: description.block,
            cluster: description.cluster,
            dynamic_shared: description.dynamic_shared,
            cooperative: description.cooperative,
            programmatic: description.programmatic,
            params: unhex(&description.params)?,
            memory,
            tensor_maps: maps.map(|(at, entry)| placed(at, entry)).collect::<Result<_, _>>()?,
            expected,
        })
    }

    /// Writes the bundle as a new folder.
    ///
    /// # Errors
    /// The folder exists already, or something cannot be written; what was begun
    /// is removed then.
    pub fn write(&self, folder: &Path) -> Result<(), BundleError> {
        let failed = |source| BundleError::Write { path: folder.to_owned(), source };
        if let Some(parent) = folder.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        std::fs::create_dir(folder).map_err(failed)?;
        self.write_files(folder).inspect_err(|_| {
            // The folder is this call's own. If it stays, the first error still says why.
            let _ = std::fs::remove_dir_all(folder);
        })
    }

    fn write_files(&self, folder: &Path) -> Result<(), BundleError> {
        put(&folder.join(PTX_FILE), self.ptx.as_bytes())?;
        let mut memory = Vec::with_capacity(self.memory.len());
        for (index, allocation) in self.memory.iter().enumerate() {
            let file = match &allocation.contents {
                Some(contents) => {
                    let file = PathBuf::from(format!("{index}-{}.bin", plain(&allocation.name)));
                    put(&folder.join(&file), contents)?;
                    Some(file)
                }
                None => None,
            };
            memory.push(MemoryEntry {
                addr: Number(allocation.addr),
                size: Number(allocation.size),
                name: allocation.name.clone(),
                file,
            });
        }
        let mut expected = BTreeMap::new();
        for (index, (name, output)) in self.expected.iter().enumerate() {
            let file = PathBuf::from(format!("expected-{index}-{}.bin", plain(name)));
            put(&folder.join(&file), &output.bytes)?;
            let compare = match output.compare {
                Compare::Exact => CompareEntry::default(),
                Compare::Integers { bytes, signed } => {
                    let dtype = format!("{}{}", if signed { 's' } else { 'u' }, 8 * bytes);
                    CompareEntry::Elements { dtype, rtol: None, atol: None }
                }
                Compare::Close { dtype, rtol, atol } => CompareEntry::Elements {
                    dtype: dtype.name().into(),
                    rtol: Some(rtol),
                    atol: Some(atol),
                },
            };
            let (addr, size) = (Number(output.addr), Number(output.bytes.len() as u64));
            expected.insert(name.clone(), ExpectedEntry { addr, size, file, compare });
        }
        let description = Description {
            ptx: PTX_FILE.into(),
            entry: self.entry.clone(),
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            dynamic_shared: self.dynamic_shared,
            cooperative: self.cooperative,
            programmatic: self.programmatic,
            params: hex(&self.params),
            memory,
            tensor_maps: self.tensor_maps.iter().map(entry).collect(),
            expected,
        };
        let path = folder.join(BUNDLE_FILE);
        let text = serde_json::to_vec_pretty(&description)
            .map_err(|source| BundleError::Json { path: path.clone(), source })?;
        put(&path, &text)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, BundleError> {
    std::fs::read(path).map_err(|source| BundleError::Read { path: path.to_owned(), source })
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), BundleError> {
    std::fs::write(path, bytes)
        .map_err(|source| BundleError::Write { path: path.to_owned(), source })
}

/// A file of exactly `size` bytes below the folder. Its length is looked at first:
/// a wrong one may be far larger than memory.
fn sized(folder: &Path, file: &Path, size: u64, field: &str) -> Result<Vec<u8>, BundleError> {
    let outside = |part: Component<'_>| !matches!(part, Component::Normal(_) | Component::CurDir);
    if file.components().any(outside) {
        return Err(BundleError::field(field, "a path below the folder", file.display()));
    }
    let path = folder.join(file);
    let actual = std::fs::metadata(&path)
        .map_err(|source| BundleError::Read { path: path.clone(), source })?
        .len();
    if actual != size {
        return Err(BundleError::field(
            field,
            format!("a file of {size} bytes"),
            format!("{} of {actual} bytes", file.display()),
        ));
    }
    read(&path)
}

/// A name as part of a file name.
fn plain(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    name.chars().take(40).map(letter).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Result<Vec<u8>, BundleError> {
    let required = "pairs of hexadecimal digits";
    if !text.len().is_multiple_of(2) {
        return Err(BundleError::field("params", required, format!("{} digits", text.len())));
    }
    let digit = |at: usize, byte: u8| {
        (byte as char).to_digit(16).ok_or_else(|| {
            BundleError::field("params", required, format!("byte {byte:#04x} at {at}"))
        })
    };
    let bytes = text.as_bytes();
    (0..bytes.len() / 2)
        .map(|at| {
            let (high, low) =
                (digit(2 * at, bytes[2 * at])?, digit(2 * at + 1, bytes[2 * at + 1])?);
            Ok((high << 4 | low) as u8)
        })
        .collect()
}

fn compare(entry: &CompareEntry, field: &str, bytes: usize) -> Result<Compare, BundleError> {
    let (dtype, rtol, atol) = match entry {
        CompareEntry::Word(word) if word == "exact" => return Ok(Compare::Exact),
        CompareEntry::Word(word) => {
            let required = "\"exact\" or {\"dtype\", \"rtol\", \"atol\"}";
            return Err(BundleError::field(format!("{field}.compare"), required, word));
        }
        CompareEntry::Elements { dtype, rtol, atol } => (dtype, *rtol, *atol),
    };
    let Some(equal) = Compare::equal(dtype) else {
        let required = format!("one of {}", Compare::TYPES);
        return Err(BundleError::field(format!("{field}.compare.dtype"), required, dtype));
    };
    for (part, value) in [("rtol", rtol), ("atol", atol)] {
        let Some(value) = value else { continue };
        if !(value >= 0.0 && value.is_finite()) {
            let field = format!("{field}.compare.{part}");
            return Err(BundleError::field(field, "a finite number of at least 0", value));
        }
    }
    let size = equal.element_bytes();
    if !bytes.is_multiple_of(size) {
        let required = format!("a multiple of the {size} bytes of {dtype}");
        return Err(BundleError::field(format!("{field}.size"), required, bytes));
    }
    match (equal, rtol, atol) {
        (Compare::Close { dtype, .. }, rtol, atol) => {
            let [rtol, atol] = [rtol, atol].map(Option::unwrap_or_default);
            Ok(Compare::Close { dtype, rtol, atol })
        }
        (equal, None, None) => Ok(equal),
        (Compare::Exact | Compare::Integers { .. }, ..) => {
            let required = "a type of floats beside rtol and atol";
            Err(BundleError::field(format!("{field}.compare.dtype"), required, dtype))
        }
    }
}

/// A name of one of the driver's enumerations, or its default.
fn named<T: FromStr<Err = ptx_emu_core::tensor_map::UnknownName>>(
    index: usize,
    text: Option<&str>,
    default: T,
) -> Result<T, BundleError> {
    let Some(text) = text else { return Ok(default) };
    text.parse().map_err(|error: ptx_emu_core::tensor_map::UnknownName| {
        let field = format!("tensor_maps[{index}].{}", error.what);
        BundleError::field(field, format!("one of {}", error.required), error.actual)
    })
}

fn placed(index: usize, entry: &MapEntry) -> Result<PlacedMap, BundleError> {
    let at = entry.at.0;
    let place = match entry.place.as_str() {
        "param" => MapPlace::Param(at),
        "global" => MapPlace::Global(at),
        other => {
            let field = format!("tensor_maps[{index}].in");
            return Err(BundleError::field(field, "\"param\" or \"global\"", other));
        }
    };
    let rank = entry.dims.len();
    if entry.rank.is_some_and(|stated| stated != rank) {
        let required = format!("{rank}, the number of dims");
        let actual = entry.rank.unwrap_or_default();
        return Err(BundleError::field(format!("tensor_maps[{index}].rank"), required, actual));
    }
    let numbers = |list: &[Number]| list.iter().map(|number| number.0).collect();
    let element: Result<ElementType, _> = entry.dtype.parse();
    let element = element.map_err(|error| {
        let field = format!("tensor_maps[{index}].dtype");
        BundleError::field(field, format!("one of {}", error.required), error.actual)
    })?;
    let map = TensorMap {
        element,
        address: entry.addr.0,
        dims: numbers(&entry.dims),
        strides: numbers(&entry.strides),
        box_dims: entry.box_dims.clone(),
        element_strides: entry.estrides.clone().unwrap_or_else(|| vec![1; rank]),
        interleave: named(index, entry.interleave.as_deref(), Interleave::None)?,
        swizzle: named(index, entry.swizzle.as_deref(), Swizzle::None)?,
        l2_promotion: named(index, entry.l2.as_deref(), L2Promotion::None)?,
        fill: named(index, entry.oob.as_deref(), Fill::Zero)?,
    };
    Ok(PlacedMap { place, map })
}

fn entry(placed: &PlacedMap) -> MapEntry {
    let (place, at) = match placed.place {
        MapPlace::Param(at) => ("param", at),
        MapPlace::Global(addr) => ("global", addr),
    };
    let map = &placed.map;
    let numbers = |list: &[u64]| list.iter().copied().map(Number).collect();
    MapEntry {
        place: place.into(),
        at: Number(at),
        dtype: map.element.name().into(),
        rank: Some(map.rank()),
        addr: Number(map.address),
        dims: numbers(&map.dims),
        strides: numbers(&map.strides),
        box_dims: map.box_dims.clone(),
        estrides: Some(map.element_strides.clone()),
        interleave: Some(map.interleave.name().into()),
        swizzle: Some(map.swizzle.name().into()),
        l2: Some(map.l2_promotion.name().into()),
        oob: Some(map.fill.name().into()),
    }
}

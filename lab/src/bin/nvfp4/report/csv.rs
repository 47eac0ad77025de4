//! The record's form: one CSV file per machine and day, one row per run.
//!
//! [`COLUMNS`] is the only description of a row, for both directions. Times are microseconds with four
//! digits after the point, which is more than a GPU's clock resolves.

use serde_json::{Map, Value, json};

use super::document::{About, Source, date_of};
use super::row::Row;

/// The meaning of a column's text for a value of the run's JSON.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// The text itself.
    Text,
    /// A number, in units of this many of the run's: 1e-6 for microseconds.
    Number(f64),
    /// `yes` or `no`.
    Flag,
    /// Made of several values, in [`text_of`] and [`run_of`].
    Made,
}

/// A column, and where its value is in the JSON of a run: the first place that has one is written, and
/// reading fills the first place.
struct Column(&'static str, Kind, &'static [&'static str]);

const US: Kind = Kind::Number(1e-6);

const COLUMNS: [Column; 38] = [
    Column("date", Kind::Made, &[]),
    Column("run", Kind::Made, &[]),
    Column("device", Kind::Text, &["/device/name"]),
    Column("operation", Kind::Text, &["/op"]),
    Column("shape", Kind::Text, &["/shape"]),
    Column("format", Kind::Text, &["/format"]),
    Column("activations", Kind::Text, &["/activations"]),
    Column("activation", Kind::Text, &["/activation"]),
    Column("recipe", Kind::Text, &["/recipe"]),
    Column("dtype", Kind::Text, &["/dtype"]),
    Column("output", Kind::Text, &["/output"]),
    Column("scale", Kind::Text, &["/scale"]),
    Column("layout", Kind::Text, &["/layout", "/b_scale_layout"]),
    Column("repack", Kind::Text, &["/plan/repack"]),
    Column("inputs", Kind::Text, &["/generator"]),
    Column("launches", Kind::Text, &["/launches"]),
    Column("kernels", Kind::Made, &[]),
    Column("split", Kind::Text, &["/plan/split", "/plans/0/split"]),
    // Whether the row is a candidate of a sweep, which reports leave out.
    Column("candidate", Kind::Made, &[]),
    Column("time us", US, &["/times/times/median"]),
    Column("p10 us", US, &["/times/times/p10"]),
    Column("p90 us", US, &["/times/times/p90"]),
    Column("ceiling us", US, &["/times/ceiling/times/median"]),
    Column("ceiling GB/s", Kind::Number(1e9), &["/times/ceiling/bytes_per_second"]),
    Column("copy us", US, &["/times/copy/times/median"]),
    Column("launch us", US, &["/times/launch_floor/median"]),
    Column("f16 TFLOP/s", Kind::Number(1e12), &["/times/tensor_ceiling"]),
    Column("cuBLAS us", US, &["/times/cublas/times/median"]),
    Column("cuBLAS", Kind::Text, &["/times/cublas/name", "/times/cublas_error"]),
    Column("cuBLAS e4m3 us", Kind::Made, &[]),
    Column("cuBLAS e4m3", Kind::Made, &[]),
    // Times of benches/peers/time_humming.py, entered by hand.
    Column("Humming us", US, &["/times/humming"]),
    Column("steps us", Kind::Made, &[]),
    Column("bytes", Kind::Number(1.0), &["/bytes"]),
    Column("cold", Kind::Flag, &["/times/cold"]),
    Column("verified", Kind::Flag, &["/verified"]),
    Column("max error", Kind::Number(1.0), &["/max_error"]),
    Column("remark", Kind::Text, &["/difference", "/error"]),
];

/// Writes sources as a CSV file.
pub fn write(sources: &[Source]) -> Result<String, String> {
    let names: Vec<String> = COLUMNS.iter().map(|Column(name, ..)| (*name).to_owned()).collect();
    let mut text = line(&names);
    for source in sources {
        for run in &source.runs {
            let kernels = Row::new(run)?.plan.map(|[kernels, _]| kernels).unwrap_or_default();
            text.push_str(&line(&cells(&source.about, run, &kernels, false)));
            for candidate in run.get("sweep").and_then(Value::as_array).into_iter().flatten() {
                let part = |name: &str| candidate.get(name).cloned().unwrap_or_default();
                let (times, plan) = (part("times"), part("candidate"));
                let kernels = plan.get("kernel").and_then(Value::as_str).unwrap_or_default();
                let mut swept = run.clone();
                swept["plan"] = plan.clone();
                swept["times"] = json!({"times": times});
                swept["max_error"] = Value::Null;
                text.push_str(&line(&cells(&source.about, &swept, kernels, true)));
            }
        }
    }
    Ok(text)
}

/// Returns the cells of a run.
fn cells(about: &About, run: &Value, kernels: &str, candidate: bool) -> Vec<String> {
    let cell = |Column(name, kind, places): &Column| {
        let value = places.iter().filter_map(|place| run.pointer(place)).find(|at| !at.is_null());
        match (kind, value) {
            (Kind::Made, _) => match *name {
                "kernels" => kernels.to_owned(),
                "candidate" if candidate => "yes".to_owned(),
                name => text_of(about, run, name),
            },
            (_, None) => String::new(),
            (Kind::Text, Some(value)) => value.as_str().unwrap_or_default().to_owned(),
            (Kind::Flag, Some(value)) => if value == true { "yes" } else { "no" }.to_owned(),
            (Kind::Number(unit), Some(value)) => {
                value.as_f64().map(|value| number(value, *unit)).unwrap_or_default()
            }
        }
    };
    COLUMNS.iter().map(cell).collect()
}

/// Returns the text of a number in units of `unit`.
fn number(value: f64, unit: f64) -> String {
    if unit == 1.0 {
        return value.to_string();
    }
    let text = format!("{:.4}", value / unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns the text of a column that no single value has.
fn text_of(about: &About, run: &Value, name: &str) -> String {
    let us = |value: &Value| value.pointer("/times/median").and_then(Value::as_f64);
    let e4m3 = run.pointer("/times/cublas_e4m3").and_then(Value::as_array);
    let fastest = e4m3.into_iter().flatten().min_by(|a, b| {
        let [a, b] = [a, b].map(|peer| us(peer).unwrap_or(f64::INFINITY));
        a.total_cmp(&b)
    });
    let text = match name {
        "date" => about.day().map(str::to_owned),
        "run" => about.file.as_ref().map(|file| {
            let name = file.strip_suffix(".json").unwrap_or(file);
            let day = date_of(name).map_or(0, |day| day.len());
            name[day..].trim_start_matches('-').to_owned()
        }),
        "cuBLAS e4m3 us" => fastest.and_then(us).map(|seconds| number(seconds, 1e-6)),
        "cuBLAS e4m3" => fastest.and_then(|peer| Some(peer.get("name")?.as_str()?.to_owned())),
        "steps us" => run.pointer("/times/steps").and_then(Value::as_array).map(|steps| {
            let step = |step: &Value| {
                let seconds = step.pointer("/times/median")?.as_f64()?;
                Some(format!("{} {}", step.get("step")?.as_str()?, number(seconds, 1e-6)))
            };
            steps.iter().filter_map(step).collect::<Vec<_>>().join("; ")
        }),
        _ => None,
    };
    text.unwrap_or_default()
}

/// Reads a CSV file: one source for each run of each day, without candidates of sweeps.
pub fn read(text: &str) -> Result<Vec<Source>, String> {
    let mut lines = lines(text)?.into_iter();
    let names = lines.next().ok_or("the file is empty")?;
    let columns: Vec<&Column> = names
        .iter()
        .map(|name| {
            let column = COLUMNS.iter().find(|Column(known, ..)| known == name);
            column.ok_or_else(|| format!("there is no column `{name}`"))
        })
        .collect::<Result<_, _>>()?;
    let mut sources: Vec<Source> = Vec::new();
    for (index, cells) in lines.enumerate() {
        let bad = |why: String| format!("row {}: {why}", index + 1);
        if cells.len() != columns.len() {
            return Err(bad(format!("{} cells, not {}", cells.len(), columns.len())));
        }
        let cell = |name: &str| {
            let at = columns.iter().position(|Column(known, ..)| *known == name)?;
            Some(cells[at].as_str()).filter(|text| !text.is_empty())
        };
        if cell("candidate").is_some() {
            continue;
        }
        let run = run_of(&columns, &cells, &cell).map_err(bad)?;
        let date = cell("date").map(str::to_owned);
        let name: Vec<&str> = [cell("date"), cell("run")].into_iter().flatten().collect();
        let file = Some(name.join("-"));
        if sources.last().is_none_or(|last| last.about.file != file) {
            let gpu = cell("device").map(str::to_owned);
            let about = About { file, date, gpu, ..About::default() };
            sources.push(Source { about, runs: Vec::new() });
        }
        sources.last_mut().expect("pushed").runs.push(run);
    }
    Ok(sources)
}

/// Returns the JSON of a row's run, as far as reports read it.
fn run_of<'a>(
    columns: &[&Column],
    cells: &[String],
    cell: &dyn Fn(&str) -> Option<&'a str>,
) -> Result<Value, String> {
    let mut run = Value::Object(Map::new());
    let parsed = |name: &str, text: &str| {
        text.parse::<f64>().map_err(|_| format!("`{name}` is no number: {text}"))
    };
    for (Column(name, kind, places), text) in columns.iter().zip(cells) {
        let (Some(place), false) = (places.first(), text.is_empty()) else { continue };
        let value = match kind {
            Kind::Text => text.as_str().into(),
            Kind::Flag => (text == "yes").into(),
            Kind::Number(unit) => (parsed(name, text)? * unit).into(),
            Kind::Made => continue,
        };
        put(&mut run, place, value);
    }
    if let Some(kernels) = cell("kernels") {
        put(&mut run, "/plan/kernel", kernels.into());
    }
    let time = cell("time us").map(|text| parsed("time us", text)).transpose()?;
    let ratio = |peer: &str| -> Result<Option<[f64; 2]>, String> {
        let peer = cell(peer).map(|text| parsed(peer, text)).transpose()?;
        Ok(peer.zip(time).map(|(peer, time)| [peer * 1e-6, peer / time]))
    };
    match (ratio("cuBLAS us")?, cell("cuBLAS")) {
        (Some([_, ratio]), _) => put(&mut run, "/times/cublas/ratio", ratio.into()),
        (None, Some(why)) => {
            put(&mut run, "/times/cublas", Value::Null);
            put(&mut run, "/times/cublas_error", why.into());
        }
        (None, None) => {}
    }
    if let (Some([seconds, ratio]), Some(name)) = (ratio("cuBLAS e4m3 us")?, cell("cuBLAS e4m3")) {
        let peer = json!({"name": name, "times": {"median": seconds}, "ratio": ratio});
        put(&mut run, "/times/cublas_e4m3", json!([peer]));
    }
    if cell("device").is_some() {
        put(&mut run, "/device/device", "cuda:0".into());
    }
    Ok(run)
}

/// Puts a value at a place, and makes the objects on the way.
fn put(run: &mut Value, place: &str, value: Value) {
    let mut at = run;
    for part in place.split('/').skip(1) {
        at = &mut at[part];
    }
    *at = value;
}

/// Returns a line of cells; a cell with a comma, a quotation mark or a line's end is quoted.
fn line(cells: &[String]) -> String {
    let quoted = |cell: &String| match cell.contains([',', '"', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

/// Returns the cells of each line.
fn lines(text: &str) -> Result<Vec<Vec<String>>, String> {
    let mut lines = Vec::new();
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut characters = text.chars().filter(|c| *c != '\r').peekable();
    while let Some(character) = characters.next() {
        match (character, quoted) {
            ('"', true) if characters.peek() == Some(&'"') => {
                cell.extend(characters.next());
            }
            ('"', _) => quoted = !quoted,
            (',', false) => cells.push(std::mem::take(&mut cell)),
            ('\n', false) => {
                cells.push(std::mem::take(&mut cell));
                lines.push(std::mem::take(&mut cells));
            }
            (other, _) => cell.push(other),
        }
    }
    if quoted || !cell.is_empty() || !cells.is_empty() {
        return Err("the last line has no end".into());
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(run: Value) -> Source {
        let about = About {
            file: Some("2026-11-22-gemm-f16.json".into()),
            date: Some("2026-11-22".into()),
            gpu: Some("NVIDIA H200".into()),
            ..About::default()
        };
        Source { about, runs: vec![run] }
    }

    #[test]
    fn a_row_gives_the_figures_of_its_run() {
        let times = |median: f64| json!({"median": median, "p10": 3e-6, "p90": 5e-6});
        let run = json!({
            "op": "grouped", "shape": "grouped:2,4x16x16", "format": "mxfp4", "activations": "fp8",
            "generator": "contest-dual", "launches": "overlapping", "bytes": 128, "verified": true,
            "device": {"device": "cuda:0", "name": "NVIDIA H200"}, "difference": "a \"word\", two",
            "plan": {"before": [{"kernel": "decode"}], "kernel": "product", "split": "stream-k"},
            "times": {
                "times": times(4.0004e-6), "cold": true,
                "ceiling": {"times": times(1e-6), "bytes_per_second": 1.28e11},
                "tensor_ceiling": 7e14,
                "cublas": {"name": "cuBLAS", "times": times(8.0008e-6), "ratio": 2.0},
                "cublas_e4m3": [
                    {"name": "slow", "times": times(7e-6), "ratio": 1.75},
                    {"name": "fast", "times": times(6.0006e-6), "ratio": 1.5},
                ],
            },
            "sweep": [{"candidate": {"kernel": "other", "split": "none"}, "times": times(9e-6)}],
        });
        let text = write(&[source(run.clone())]).expect("written");
        assert_eq!(text.lines().count(), 3, "{text}");
        let read = read(&text).expect("read");
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].about.file.as_deref(), Some("2026-11-22-gemm-f16"));
        assert_eq!(read[0].about.day(), Some("2026-11-22"));
        let rows = read[0].rows().expect("rows");
        let mut expected = Row::new(&run).expect("a row");
        // The grid, the threads and who chose are not recorded.
        expected.plan = Some(["decode, product".into(), "stream-k".into()]);
        let near = |a: Option<f64>, b: f64| a.is_some_and(|a| (a / b - 1.0).abs() < 1e-4);
        let row = &rows[0];
        assert!(near(row.time, 4.0004e-6) && near(row.read_rate, 1.28e11));
        let peer = row.peer.as_ref().expect("a peer");
        assert!(peer.name == "fast" && near(Some(peer.ratio), 1.5));
        let rounded = Row {
            time: expected.time,
            spread: expected.spread,
            floor: expected.floor.clone(),
            peer: expected.peer.clone(),
            read_rate: expected.read_rate,
            tensor_rate: expected.tensor_rate,
            ..row.clone()
        };
        assert_eq!(rounded, expected);
    }

    #[test]
    fn a_reason_without_a_peer_is_kept() {
        let run = json!({"op": "gemm", "shape": "gemm:2x4x16", "times": {
            "times": {"median": 1e-6}, "cublas": null, "cublas_error": "no library"}});
        let text = write(&[source(run)]).expect("written");
        let row = &read(&text).expect("read")[0].rows().expect("rows")[0];
        assert_eq!((row.peer.clone(), row.no_peer.as_deref()), (None, Some("no library")));
    }

    #[test]
    fn other_files_are_refused() {
        let one = "operation,shape,time us\n";
        for (text, why) in [
            (String::new(), "the file is empty"),
            ("operation,colour\n".into(), "no column `colour`"),
            (format!("{one}gemm\n"), "row 1: 1 cells, not 3"),
            (format!("{one}gemm,gemm:1x1x16,soon\n"), "row 1: `time us` is no number"),
            (format!("{one}gemm,\"gemm:1x1x16,1\n"), "no end"),
        ] {
            assert!(read(&text).is_err_and(|error| error.contains(why)), "{text:?}: {why}");
        }
    }
}

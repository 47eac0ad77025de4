//! The history of the record: dated files of one machine, and what they have in common.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::ReportError;
use super::document::{Document, date_of};
use super::row::{Row, plain_inputs};

/// Times by day. Files that could not be read are named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// The folder's name.
    pub folder: Option<String>,
    /// The reason why there is no record.
    pub none: Option<String>,
    /// Files that were read.
    pub files: Vec<String>,
    /// Files that were not, and why.
    pub left_out: Vec<[String; 2]>,
    pub points: Vec<Point>,
}

/// A time of a day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub op: String,
    pub details: String,
    pub sizes: String,
    pub day: String,
    pub seconds: f64,
}

impl Point {
    fn new(row: &Row, day: &str) -> Option<Self> {
        let mut details = row.details.clone();
        if let Some(inputs) = row.inputs.as_ref().filter(|inputs| !plain_inputs(inputs)) {
            let separator = if details.is_empty() { "" } else { ", " };
            details = format!("{details}{separator}{inputs} inputs");
        }
        Some(Self {
            op: row.op.clone(),
            details,
            sizes: row.sizes().to_owned(),
            day: day.to_owned(),
            seconds: row.time?,
        })
    }
}

/// Runs of an operation with the same details: one panel.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub title: String,
    pub series: Vec<Series>,
}

/// The times of one shape by day, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub sizes: String,
    /// Days since 1970, the day, seconds.
    pub points: Vec<(i64, String, f64)>,
}

impl History {
    /// Reads the dated files of a folder, as far as they are of a GPU called `gpu`.
    pub fn read(folder: &Path, gpu: &str) -> Result<Self, ReportError> {
        let failed = |source| ReportError::Read { path: folder.to_owned(), source };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            let recorded = [".csv", ".json"].iter().any(|end| name.ends_with(end));
            names.extend(recorded.then_some(name));
        }
        names.sort();
        let folder_name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
        let mut history = Self { folder: folder_name, ..Self::default() };
        for name in names {
            let Some(day) = date_of(&name) else {
                history.left_out.push([name, "its name begins with no date".into()]);
                continue;
            };
            match Document::read(&folder.join(&name)) {
                Err(error) => history.left_out.push([name, error.to_string()]),
                Ok(sources) => {
                    let rows = Document::new(sources).rows().unwrap_or_default();
                    let of_gpu = |row: &&Row| !row.emulated && row.device.as_deref() == Some(gpu);
                    let rows = rows.iter().map(|(_, row)| row).filter(of_gpu);
                    history.points.extend(rows.filter_map(|row| Point::new(row, &day)));
                    history.files.push(name);
                }
            }
        }
        Ok(history)
    }

    /// Adds the measured rows of a report that has a day.
    pub fn add(&mut self, rows: &[Row], day: &str) {
        self.points.extend(rows.iter().filter_map(|row| Point::new(row, day)));
    }

    /// The shapes that were measured on several days, and how many were on one day only. The last of
    /// several times of a day counts.
    pub fn panels(&self) -> (Vec<Panel>, usize) {
        let mut panels: Vec<Panel> = Vec::new();
        for Point { op, details, sizes, day, seconds } in &self.points {
            let Some(at) = days(day) else { continue };
            let separator = if details.is_empty() { "" } else { ", " };
            let title = format!("{op}{separator}{details}");
            let panel = find(
                &mut panels,
                |panel| panel.title == title,
                || Panel { title: title.clone(), series: Vec::new() },
            );
            let series = find(
                &mut panel.series,
                |series| series.sizes == *sizes,
                || Series { sizes: sizes.clone(), points: Vec::new() },
            );
            series.points.retain(|(other, ..)| *other != at);
            series.points.push((at, day.clone(), *seconds));
            series.points.sort_by_key(|(at, ..)| *at);
        }
        let mut single = 0;
        for panel in &mut panels {
            let before = panel.series.len();
            panel.series.retain(|series| series.points.len() > 1);
            single += before - panel.series.len();
        }
        panels.retain(|panel| !panel.series.is_empty());
        (panels, single)
    }
}

/// The element that `is` says, added if there is none.
fn find<T>(all: &mut Vec<T>, is: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> &mut T {
    let at = all.iter().position(is).unwrap_or_else(|| {
        all.push(make());
        all.len() - 1
    });
    &mut all[at]
}

/// Days of each month of a year that is no leap year.
const MONTHS: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn month_days(year: i64, month: usize) -> i64 {
    MONTHS[month] + i64::from(month == 1 && leap(year))
}

/// Days since 1970-01-01 of a day from then on, `YYYY-MM-DD`.
pub fn days(day: &str) -> Option<i64> {
    let parts: Vec<&str> = day.split('-').collect();
    let &[year, month, date] = parts.as_slice() else { return None };
    let number = |text: &str, digits: usize| -> Option<i64> {
        (text.len() == digits && text.bytes().all(|c| c.is_ascii_digit()))
            .then(|| text.parse().ok())?
    };
    let (year, month, date) = (number(year, 4)?, number(month, 2)?, number(date, 2)?);
    let index = usize::try_from(month - 1).ok().filter(|month| *month < 12)?;
    if year < 1970 || date < 1 || date > month_days(year, index) {
        return None;
    }
    let years: i64 = (1970..year).map(|year| 365 + i64::from(leap(year))).sum();
    let months: i64 = (0..index).map(|month| month_days(year, month)).sum();
    Some(years + months + date - 1)
}

/// UTC, `YYYY-MM-DD HH:MM`, of seconds since 1970.
pub fn utc(seconds: u64) -> String {
    let (mut left, minutes) = ((seconds / 86_400) as i64, seconds / 60 % 1440);
    let mut year = 1970;
    while left >= 365 + i64::from(leap(year)) {
        left -= 365 + i64::from(leap(year));
        year += 1;
    }
    let mut month = 0;
    while left >= month_days(year, month) {
        left -= month_days(year, month);
        month += 1;
    }
    let (date, hour, minute) = (left + 1, minutes / 60, minutes % 60);
    format!("{year:04}-{:02}-{date:02} {hour:02}:{minute:02}", month + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_and_bad_ones_refused() {
        for (day, count) in
            [("1970-01-01", 0), ("1970-12-31", 364), ("2000-03-01", 11017), ("2026-11-24", 20781)]
        {
            assert_eq!(days(day), Some(count), "{day}");
            assert_eq!(utc(count as u64 * 86_400 + 3661), format!("{day} 01:01"));
        }
        for bad in
            ["2026-02-29", "2026-00-10", "2026-11-31", "1969-12-31", "2026-1-01", "", "a-b-c"]
        {
            assert_eq!(days(bad), None, "{bad}");
        }
        assert_eq!(days("2024-02-29"), Some(19782));
    }

    fn row(sizes: &str, time: f64) -> Row {
        Row {
            op: "gemm".into(),
            shape: format!("gemm:{sizes}"),
            time: Some(time),
            ..Row::default()
        }
    }

    #[test]
    fn series_have_several_days_and_the_last_time_of_each() {
        let mut history = History::default();
        history.add(&[row("1x16x16", 3e-6), row("2x16x16", 3e-6)], "2026-11-20");
        history.add(&[row("1x16x16", 1e-6)], "2026-11-22");
        history.add(&[row("1x16x16", 2e-6)], "2026-11-22");
        let other = Row { inputs: Some("exact".into()), ..row("1x16x16", 9e-6) };
        history.add(&[other, Row { time: None, ..row("1x16x16", 1.0) }], "2026-11-21");
        let (panels, single) = history.panels();
        assert_eq!(single, 2);
        assert_eq!(panels.len(), 1);
        assert_eq!((panels[0].title.as_str(), panels[0].series.len()), ("gemm", 1));
        let times: Vec<f64> = panels[0].series[0].points.iter().map(|(.., time)| *time).collect();
        assert_eq!(times, [3e-6, 2e-6]);
        assert_eq!(History::default().panels(), (Vec::new(), 0));
    }
}

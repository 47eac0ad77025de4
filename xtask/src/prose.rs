//! Rules of comments and pages: how a doc comment begins, and how no sentence does.

use crate::run;
use std::path::{Path, PathBuf};

/// Words that begin no sentence, in comments and on pages.
const NO_SENTENCE: [&str; 4] = ["Of", "Where", "What", "Those"];
/// Words that, in addition, begin no doc comment, which begins with a verb or names the item.
const NO_DOC: [&str; 23] = [
    "After", "As", "At", "Behind", "By", "For", "From", "Has", "How", "In", "Into", "It", "On",
    "That", "They", "To", "When", "Which", "Who", "Whose", "Why", "With", "Without",
];

/// A paragraph of a comment or of a page.
#[derive(Debug, Default)]
struct Paragraph {
    /// Whether it begins a doc comment.
    begins_doc: bool,
    /// Lines with their numbers, without markers.
    lines: Vec<(usize, String)>,
}

/// Returns whether a line begins an item of a list, a quotation, a row of a table or a heading.
fn begins_item(text: &str) -> bool {
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
    ["- ", "* ", "| ", "> "].iter().any(|marker| text.starts_with(marker))
        || text.starts_with('#')
        || (digits.len() < text.len() && digits.starts_with(". "))
}

/// Adds a line to the paragraphs; a line that begins an item begins a paragraph, a heading is one.
fn add(
    paragraphs: &mut Vec<Paragraph>,
    open: &mut bool,
    begins_doc: bool,
    line: usize,
    text: &str,
) {
    let text = text.trim();
    if begins_item(text) || !*open {
        paragraphs.push(Paragraph { begins_doc, lines: Vec::new() });
    }
    if let Some(last) = paragraphs.last_mut() {
        last.lines.push((line, text.to_owned()));
    }
    *open = !text.starts_with('#');
}

/// Returns the paragraphs of a source file's comments, without examples of code.
fn of_source(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = Vec::new();
    let (mut open, mut code, mut before) = (false, false, "");
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let marker = ["///", "//!", "//"].into_iter().find(|marker| trimmed.starts_with(marker));
        let Some(marker) = marker.filter(|_| !trimmed.starts_with("////")) else {
            (open, code, before) = (false, false, "");
            continue;
        };
        let words = &trimmed[marker.len()..];
        let begins_doc = marker != "//" && marker != before;
        open &= marker == before;
        before = marker;
        if words.trim_start().starts_with("```") {
            (open, code) = (false, !code);
        } else if words.trim().is_empty() {
            open = false;
        } else if !code {
            add(&mut paragraphs, &mut open, begins_doc, index + 1, words);
        }
    }
    paragraphs
}

/// Returns the paragraphs of a page, each cell of a table as one, without examples of code.
fn of_page(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = Vec::new();
    let (mut open, mut code) = (false, false);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("```") {
            (open, code) = (false, !code);
        } else if code || line.is_empty() {
            open = false;
        } else if line.starts_with('|') {
            for cell in line.split('|').filter(|cell| !cell.trim().is_empty()) {
                open = false;
                add(&mut paragraphs, &mut open, false, index + 1, cell);
            }
            open = false;
        } else {
            add(&mut paragraphs, &mut open, false, index + 1, line);
        }
    }
    paragraphs
}

/// Returns the first word, behind markers of lists, headings, emphasis and quotation.
fn first_word(sentence: &str) -> &str {
    let start = sentence.trim_start_matches(|c: char| "-#>*| [(_\"'".contains(c));
    let end = start.find(|c: char| !c.is_ascii_alphabetic() && c != '\'').unwrap_or(start.len());
    &start[..end]
}

/// Returns where a sentence ends in `text`, behind its full stop and what closes with it.
fn end_of_sentence(text: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = text[from..].find(['.', '!', '?']) {
        let behind = from + at + 1;
        let rest = text[behind..].trim_start_matches(|c: char| "\"')]*_`".contains(c));
        if rest.starts_with(' ') {
            return Some(text.len() - rest.len());
        }
        from = behind;
    }
    None
}

/// Returns the offences of a paragraph: lines and sentences.
fn offences(paragraph: &Paragraph) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let lines: Vec<&str> = paragraph.lines.iter().map(|(_, text)| text.as_str()).collect();
    let text = lines.join(" ");
    // The line that holds a byte of the joined text.
    let line_of = |at: usize| {
        let mut end = 0;
        let line = paragraph.lines.iter().find(|(_, text)| {
            end += text.len() + 1;
            at < end
        });
        line.map_or(0, |(line, _)| *line)
    };
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let skipped = rest.len() - rest.trim_start().len();
        let sentence = rest.trim_start();
        let word = first_word(sentence);
        let doc = at == 0 && paragraph.begins_doc;
        if NO_SENTENCE.contains(&word) || (doc && NO_DOC.contains(&word)) {
            let shown: String = sentence.chars().take(60).collect();
            found.push((line_of(at + skipped), shown));
        }
        let Some(end) = end_of_sentence(rest) else { break };
        at += end;
    }
    found
}

/// Returns the files of the project that git tracks or could track, by extension.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                files(&path, found);
            }
        } else if name.ends_with(".rs") || name.ends_with(".md") {
            found.push(path);
        }
    }
}

#[test]
fn comments_and_pages_begin_their_sentences_plainly() {
    let root = run::root();
    let mut paths = Vec::new();
    files(&root, &mut paths);
    let [mut paragraphs, mut faults] = [0, 0];
    let mut listed = Vec::new();
    for path in paths {
        // A corpus of other projects has their words.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let page = path.extension().is_some_and(|extension| extension == "md");
        let all = if page { of_page(&text) } else { of_source(&text) };
        paragraphs += all.len();
        for (line, sentence) in all.iter().flat_map(offences) {
            faults += 1;
            let path = path.strip_prefix(&root).unwrap_or(&path);
            listed.push(format!("{}:{line}: {sentence}", path.display()));
        }
    }
    assert!(paragraphs > 10_000, "found only {paragraphs} paragraphs");
    assert!(
        listed.is_empty(),
        "a doc comment begins with a verb or names the item, and no sentence begins with {}: \
         {faults} offences\n  {}",
        NO_SENTENCE.join(", "),
        listed.join("\n  ")
    );
}

#[test]
fn sentences_are_found_across_lines() {
    let lines = |text: &str| -> Vec<usize> {
        of_source(text).iter().flat_map(offences).map(|(line, _)| line).collect()
    };
    // A line that continues a sentence may begin with any word.
    assert_eq!(lines("/// Returns the value\n/// Of the item.\nfn f() {}"), [0; 0]);
    assert_eq!(lines("/// Returns it. Of the\n/// others none.\n"), [1]);
    assert_eq!(lines("/// Returns it. No\n/// others. Where it is.\n"), [2]);
    assert_eq!(lines("/// As before.\n///\n/// As a rule.\n// As a remark.\n"), [1]);
    assert_eq!(lines("//! A list:\n//! - of one\n//! - *What*\n"), [3]);
    assert_eq!(lines("/// `a.b` of `c.` Those.\nfn f() {} // What\n"), [1]);
    assert_eq!(lines("/// Example:\n/// ```\n/// // What\n/// ```\nlet a = 1; //\n"), [0; 0]);
    let page = "# What\n\nA page. (Of one.)\n\n| Where | it |\n| --- | --- |\n\n```\nWhat\n```\n";
    let found: Vec<usize> = of_page(page).iter().flat_map(offences).map(|(line, _)| line).collect();
    assert_eq!(found, [1, 3, 5]);
}

//! The `#[kernel]` attribute of `cuda_std`.
//!
//! Works on token trees directly: the grammar is small and this keeps a parser
//! library out of every kernel build.

use proc_macro::{Delimiter, Group, Ident, Spacing, TokenStream, TokenTree};

/// Marks an `unsafe fn` as a kernel entry point.
///
/// The function keeps its name in the PTX and becomes `.visible .entry`.
/// Arguments (all optional, any constant expression):
///
/// | argument | PTX directive |
/// |---|---|
/// | `name = (parts)` | none: the function's name, joined from words and numbers |
/// | `threads = N`, `(X, Y)` or `(X, Y, Z)` | `.reqntid` |
/// | `max_threads = N`, `(X, Y)` or `(X, Y, Z)` | `.maxntid` |
/// | `min_blocks = N` (CTAs per SM) | `.minnctapersm` |
/// | `max_registers = N` | `.maxnreg` |
/// | `cluster = N`, `(X, Y)` or `(X, Y, Z)` | `.reqnctapercluster` |
///
/// ```ignore
/// #[kernel(threads = 128, min_blocks = 4)]
/// pub unsafe fn scale(params: ScaleParams) { ... }
/// ```
///
/// When `cuda_builder` compiles some kernels of a crate to a module of their own, all others are
/// left out.
///
/// The directives are written by `cuda_builder`, which finds the marker that
/// this attribute plants at the top of the body. The crate that uses the
/// attribute needs `#![feature(abi_ptx)]`.
#[proc_macro_attribute]
pub fn kernel(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(arguments, item).unwrap_or_else(|message| {
        format!("::core::compile_error!({message:?});").parse().expect("a string literal parses")
    })
}

/// Launch bounds as source text of constant expressions; "0" means not given.
struct Bounds {
    threads: [String; 3],
    exact: bool,
    min_blocks: String,
    max_registers: String,
    cluster: [String; 3],
}

fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream, String> {
    let Arguments { name, bounds } = parse_arguments(arguments)?;
    let tokens: Vec<TokenTree> = item.into_iter().collect();
    let function = tokens
        .iter()
        .position(|t| matches!(t, TokenTree::Ident(i) if i.to_string() == "fn"))
        .ok_or("#[kernel] goes on a function")?;
    if !matches!(&tokens[..function], [.., TokenTree::Ident(i)] if i.to_string() == "unsafe") {
        return Err("a kernel is an `unsafe fn`: its pointers come from the launch".into());
    }
    if matches!(tokens.get(function + 2), Some(TokenTree::Punct(p)) if p.as_char() == '<') {
        return Err("a kernel entry cannot be generic: call a generic function from it".into());
    }
    let Some((TokenTree::Group(body), signature)) = tokens.split_last() else {
        return Err("a kernel needs a body".into());
    };
    if body.delimiter() != Delimiter::Brace {
        return Err("a kernel needs a body".into());
    }

    let Some(TokenTree::Ident(own)) = tokens.get(function + 1) else {
        return Err("a kernel needs a name".into());
    };
    let name = match name {
        Some(name) => Ident::new(&name, own.span()),
        None => own.clone(),
    };
    let attributes = format!(
        "#[cfg(any(not(cuda_builder_module), cuda_builder_entry = \"{name}\"))] \
         #[unsafe(no_mangle)]"
    );
    let mut out: TokenStream = attributes.parse().map_err(|e| format!("{e}"))?;
    out.extend(signature[..function].iter().cloned());
    out.extend("extern \"ptx-kernel\"".parse::<TokenStream>().map_err(|e| format!("{e}"))?);
    out.extend([signature[function].clone(), TokenTree::Ident(name)]);
    out.extend(signature[function + 2..].iter().cloned());

    let [tx, ty, tz] = &bounds.threads;
    let [cx, cy, cz] = &bounds.cluster;
    let (exact, blocks, registers) = (bounds.exact, &bounds.min_blocks, &bounds.max_registers);
    let marker = format!(
        "::cuda_std::launch_bounds::<{{{tx}}}, {{{ty}}}, {{{tz}}}, {exact}, {{{blocks}}}, \
         {{{registers}}}, {{{cx}}}, {{{cy}}}, {{{cz}}}>();"
    );
    let mut inner: TokenStream = marker.parse().map_err(|e| format!("{e}"))?;
    inner.extend(body.stream());
    out.extend([TokenTree::Group(Group::new(Delimiter::Brace, inner))]);
    Ok(out)
}

struct Arguments {
    /// The kernel's name, where it is not the function's.
    name: Option<String>,
    bounds: Bounds,
}

fn parse_arguments(arguments: TokenStream) -> Result<Arguments, String> {
    let mut kernel = None;
    let zero = || ["0".to_string(), "0".to_string(), "0".to_string()];
    let mut bounds = Bounds {
        threads: zero(),
        exact: true,
        min_blocks: "0".into(),
        max_registers: "0".into(),
        cluster: zero(),
    };
    let mut seen = Vec::new();
    for argument in split_commas(arguments) {
        let [TokenTree::Ident(name), TokenTree::Punct(equals), value @ ..] = &argument[..] else {
            return Err("expected `name = value`".into());
        };
        if equals.as_char() != '=' || equals.spacing() != Spacing::Alone || value.is_empty() {
            return Err(format!("expected `{name} = value`"));
        }
        let name = name.to_string();
        if seen.contains(&name) {
            return Err(format!("`{name}` is given twice"));
        }
        match name.as_str() {
            "name" => kernel = Some(joined(value)?),
            "threads" => bounds.threads = dimensions(value)?,
            "max_threads" => {
                bounds.threads = dimensions(value)?;
                bounds.exact = false;
            }
            "min_blocks" => bounds.min_blocks = text(value),
            "max_registers" => bounds.max_registers = text(value),
            "cluster" => bounds.cluster = dimensions(value)?,
            other => {
                return Err(format!(
                    "unknown argument `{other}`: name, threads, max_threads, min_blocks, \
                     max_registers and cluster are known"
                ));
            }
        }
        seen.push(name);
    }
    if seen.iter().any(|s| s == "threads") && seen.iter().any(|s| s == "max_threads") {
        return Err("`threads` and `max_threads` exclude each other".into());
    }
    Ok(Arguments { name: kernel, bounds })
}

/// The name that the words and numbers in parentheses make together.
fn joined(value: &[TokenTree]) -> Result<String, String> {
    let [TokenTree::Group(parts)] = value else {
        return Err("expected a name's parts in parentheses".into());
    };
    let mut name = String::new();
    for part in parts.stream() {
        match part {
            TokenTree::Ident(_) | TokenTree::Literal(_) => name += &part.to_string(),
            TokenTree::Group(_) | TokenTree::Punct(_) => {
                return Err(format!("`{part}` is no part of a name"));
            }
        }
    }
    let named = name.starts_with(|first: char| first.is_ascii_alphabetic());
    if !named || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(format!("`{name}` is no name"));
    }
    Ok(name)
}

/// `N` is (N, 1, 1), `(X, Y)` is (X, Y, 1), `(X, Y, Z)` is itself.
fn dimensions(value: &[TokenTree]) -> Result<[String; 3], String> {
    if let [TokenTree::Group(group)] = value
        && group.delimiter() == Delimiter::Parenthesis
    {
        let parts = split_commas(group.stream());
        match &parts[..] {
            [x, y, z] => return Ok([text(x), text(y), text(z)]),
            [x, y] => return Ok([text(x), text(y), "1".into()]),
            [_] => {}
            _ => return Err("expected N, (x, y) or (x, y, z)".into()),
        }
    }
    Ok([text(value), "1".into(), "1".into()])
}

fn text(tokens: &[TokenTree]) -> String {
    tokens.iter().cloned().collect::<TokenStream>().to_string()
}

fn split_commas(stream: TokenStream) -> Vec<Vec<TokenTree>> {
    let mut parts = vec![Vec::new()];
    for token in stream {
        match &token {
            TokenTree::Punct(p) if p.as_char() == ',' => parts.push(Vec::new()),
            _ => parts.last_mut().expect("never empty").push(token),
        }
    }
    parts.retain(|p| !p.is_empty());
    parts
}

//! Words and tokens: the tokenizer and the chat template of a model's folder.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::optional;

/// A model's tokenizer, with its chat template if there is one.
pub struct Words {
    tokenizer: Tokenizer,
    template: Option<String>,
    /// Names and values that templates are given, such as `bos_token`.
    special: Vec<(String, String)>,
}

/// Tokens that end a text by `generation_config.json`; those of conversations are in it alone.
pub fn ends(folder: &Path) -> Result<Vec<u32>> {
    let path = folder.join("generation_config.json");
    let Some(text) = optional(&path)? else { return Ok(Vec::new()) };
    let config: Value =
        serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
    let ids = match &config["eos_token_id"] {
        Value::Null => Vec::new(),
        Value::Array(ids) => ids.clone(),
        id => vec![id.clone()],
    };
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = ids.iter().map(id).collect();
    ids.with_context(|| format!("{}: eos_token_id is no token's number", path.display()))
}

impl Words {
    /// Reads `tokenizer.json` and the template of a folder; `None` if there is no tokenizer and none is needed.
    pub fn open(folder: &Path, is_needed: bool) -> Result<Option<Self>> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() && !is_needed {
            return Ok(None);
        }
        let tokenizer = Tokenizer::from_file(&path).map_err(|error| anyhow!("{error}"));
        let tokenizer = tokenizer.with_context(|| format!("{}", path.display()))?;
        let path = folder.join("tokenizer_config.json");
        let config: Value = match optional(&path)? {
            Some(text) => {
                serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?
            }
            None => Value::Null,
        };
        let template = match optional(&folder.join("chat_template.jinja"))? {
            Some(template) => Some(template),
            None => config["chat_template"].as_str().map(str::to_owned),
        };
        let of_config = |(name, value): (&String, &Value)| {
            let text = value.as_str().or(value["content"].as_str())?;
            name.ends_with("_token").then(|| (name.clone(), text.to_owned()))
        };
        let special = config.as_object().into_iter().flatten().filter_map(of_config).collect();
        Ok(Some(Self { tokenizer, template, special }))
    }

    /// The tokens of a text, or of a conversation in which the user has said it.
    pub fn encode(&self, text: &str, chat: bool) -> Result<Vec<u32>> {
        let said;
        let text = match chat {
            true => {
                said = self.conversation(text)?;
                &said
            }
            false => text,
        };
        // A template writes the tokens of its beginning itself.
        let encoding = self.tokenizer.encode(text, !chat).map_err(|error| anyhow!("{error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn conversation(&self, text: &str) -> Result<String> {
        let template = self.template.as_deref();
        let template = template.context("--chat: the model's folder has no chat template")?;
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        // Templates say the date by it; a fixed one makes prompts repeatable.
        environment.add_function("strftime_now", |_: String| "2026-01-01");
        environment.add_template("chat", template).context("the chat template")?;
        for (name, value) in &self.special {
            environment.add_global(name.clone(), value.clone());
        }
        let messages = [context! { role => "user", content => text }];
        let values = context! { messages => messages, add_generation_prompt => true };
        environment.get_template("chat")?.render(values).context("the chat template")
    }

    /// The text of tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(|error| anyhow!("{error}"))
    }

    /// Gives the text that each token adds, once its last character is whole.
    pub fn stream(&self) -> impl FnMut(u32) -> Result<Option<String>> {
        let mut stream = self.tokenizer.decode_stream(true);
        move |token| stream.step(token).map_err(|error| anyhow!("{error}"))
    }
}

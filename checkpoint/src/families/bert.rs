//! BERT and its relatives.

use super::{Architecture, GENERAL};

/// BERT, RoBERTa and other encoders.
pub(super) const BERT: Architecture = Architecture {
    name: "BERT",
    model_types: &[
        "bert",
        "roberta",
        "xlm-roberta",
        "electra",
        "deberta",
        "deberta-v2",
        "modernbert",
    ],
    classes: &["BertModel"],
    joined: &[&["query", "key", "value"]],
    floats: &[("*.pooler.*", "the pooler, which is small")],
    ..GENERAL
};

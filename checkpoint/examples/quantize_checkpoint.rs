//! Quantises a checkpoint on the CPU, checks it against the original, and writes it in a second
//! layout:
//!
//! ```text
//! cargo run --release --package nvfp4-checkpoint --example quantize_checkpoint -- MODEL OUT
//! ```

use std::path::PathBuf;

use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{
    Layout, Model, ModelOptions, SaveOptions, convert_model, quantize_model, verify,
};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(source), Some(out)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("two arguments are needed: the model and the folder to make");
    };
    std::fs::create_dir(&out)?;
    let model = Model::open(source)?;
    let options = ModelOptions::new(recipe_by_name(Format::Nvfp4, "modelopt")?, Layout::ModelOpt);
    let modelopt = out.join("modelopt");
    print!("{}", quantize_model(&model, &options, &modelopt, None, &mut ())?);

    let quantised = Model::open(&modelopt)?;
    print!("{}", verify(&quantised, Some(&model), &mut ())?);

    let options = SaveOptions::new(Layout::CompressedTensors);
    let converted = out.join("compressed-tensors");
    print!("{}", convert_model(&quantised, None, &options, &converted, &mut ())?);
    Ok(())
}

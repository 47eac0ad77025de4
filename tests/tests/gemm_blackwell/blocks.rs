//! The same product in NVFP4: what the CPU's quantiser makes of its f32, bit for bit.

use crate::case::{Case, GUARD, POISON};
use fp4_formats::gemm::{Epilogue, OUT_NVFP4, OUT_RECIPE, Problem, ResultScales, Sink};
use fp4_formats::{BlockFormat, FloatType, Nvfp4, ScaleLayout};
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::Dims;
use ptx_emu::GlobalMemory;

/// Where the result goes, poisoned and with room after it that nobody may write.
pub struct Blocks {
    codes: u64,
    code_bytes: u64,
    scale_bytes: u64,
    scales: ResultScales,
}

impl Blocks {
    pub fn epilogue(&self, floats: Epilogue) -> Epilogue {
        let sink =
            Sink { out: self.codes, out_type: OUT_NVFP4, scales: self.scales, ..floats.sink };
        Epilogue { sink, ..floats }
    }
}

fn values(floats: &[u8]) -> Vec<f32> {
    floats.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

impl Case {
    fn dims(&self) -> Dims {
        let Problem { m, n, l, .. } = self.problem;
        Dims::new(l as usize, m as usize, n as usize).expect("a result")
    }

    pub fn place_blocks(
        &self,
        memory: &mut GlobalMemory,
        layout: ScaleLayout,
        floats: &[u8],
    ) -> Blocks {
        assert_eq!(self.output, FloatType::F32);
        let amax = values(floats).iter().fold(0f32, |amax, x| amax.max(x.abs()));
        let dims = self.dims();
        let stride = Nvfp4::scale_bytes(dims.rows(), dims.cols(), layout).expect("small") as u64;
        let [code_bytes, scale_bytes] = [dims.elements() as u64 / 2, stride * dims.batch() as u64];
        let mut place = |name: &str, bytes: u64| {
            let at = memory.alloc(name, bytes + GUARD, 256).expect("room");
            memory.fill(at, bytes + GUARD, POISON).expect("inside");
            at
        };
        let scales = ResultScales {
            out: place("C scales", scale_bytes),
            stride,
            parameter: OUT_RECIPE.tensor_parameter(amax),
            blocked: u32::from(layout == ScaleLayout::Blocked128x4),
        };
        Blocks { codes: place("C codes", code_bytes), code_bytes, scale_bytes, scales }
    }

    /// Fails with the first mismatch.
    pub fn compare_blocks(
        &self,
        memory: &GlobalMemory,
        layout: ScaleLayout,
        floats: &[u8],
        blocks: &Blocks,
    ) {
        let (dims, scale) = (self.dims(), TensorScale::Given(blocks.scales.parameter));
        let expected = quantize("C", &values(floats), dims, scale, layout).expect("finite");
        for (part, at, bytes, expected) in [
            ("codes", blocks.codes, blocks.code_bytes, expected.codes()),
            ("scales", blocks.scales.out, blocks.scale_bytes, expected.scales()),
        ] {
            let got = memory.read(at, bytes + GUARD).expect("inside");
            let (got, guard) = got.split_at(bytes as usize);
            assert!(guard.iter().all(|&byte| byte == POISON), "{self:?}: wrote past the {part}");
            assert_eq!(got.len(), expected.len());
            if let Some(i) = (0..got.len()).find(|&i| got[i] != expected[i]) {
                // Of the codes: batch and row, and the byte's first column.
                let (row, column) = (i / (dims.cols() / 2), i % (dims.cols() / 2) * 2);
                let (got, expected) = (got[i], expected[i]);
                panic!("{self:?}\n{part}[{i}] ([{row}, {column}]): {got:#x} for {expected:#x}");
            }
        }
    }
}

//! The block in f32, one token and one expert after the other.

use super::block::{Router, Values};

/// The experts that each of `tokens` chooses, `[T, k]`, and their weights: a softmax over the chosen
/// ones, the best first.
pub fn route(router: &Router, tokens: &[f32], hidden: usize) -> (Vec<i32>, Vec<f32>) {
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for token in tokens.chunks_exact(hidden) {
        let rows = router.weight.chunks_exact(hidden);
        let mut logits: Vec<(usize, f32)> =
            rows.zip(&router.bias).map(|(row, bias)| dot(row, token) + bias).enumerate().collect();
        logits.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        logits.truncate(router.top_k);
        let best = logits.first().map_or(0.0, |(_, logit)| *logit);
        let powers: Vec<f32> = logits.iter().map(|(_, logit)| (logit - best).exp()).collect();
        let sum: f32 = powers.iter().sum();
        ids.extend(logits.iter().map(|(expert, _)| *expert as i32));
        weights.extend(powers.iter().map(|power| power / sum));
    }
    (ids, weights)
}

/// Computes the block for `tokens` with these choices, `[T, H]`.
pub fn block(
    experts: &[Values],
    clamped: bool,
    tokens: &[f32],
    hidden: usize,
    (ids, weights): (&[i32], &[f32]),
) -> Vec<f32> {
    let top_k = ids.len() / (tokens.len() / hidden);
    let mut out = vec![0f32; tokens.len()];
    for (slot, (&id, weight)) in ids.iter().zip(weights).enumerate() {
        let at = slot / top_k * hidden;
        let token = &tokens[at..at + hidden];
        let Values { gate, up, down, biases: [gate_bias, up_bias, down_bias] } =
            &experts[id as usize];
        let product = |matrix: &[f32], bias: &[f32], x: &[f32]| -> Vec<f32> {
            matrix.chunks_exact(x.len()).zip(bias).map(|(row, bias)| dot(row, x) + bias).collect()
        };
        let gates = product(gate, gate_bias, token);
        let ups = product(up, up_bias, token);
        let inner: Vec<f32> =
            gates.iter().zip(&ups).map(|(&gate, &up)| activated(gate, up, clamped)).collect();
        let result = product(down, down_bias, &inner);
        for (sum, value) in out[at..at + hidden].iter_mut().zip(result) {
            *sum += weight * value;
        }
    }
    out
}

/// `silu(gate) * up`, or gpt-oss's clamped form of it.
fn activated(gate: f32, up: f32, clamped: bool) -> f32 {
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    match clamped {
        false => gate * sigmoid(gate) * up,
        true => {
            let (gate, up) = (gate.min(7.0), up.clamp(-7.0, 7.0));
            gate * sigmoid(1.702 * gate) * (up + 1.0)
        }
    }
}

fn dot(x: &[f32], y: &[f32]) -> f32 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

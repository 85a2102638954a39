use super::*;
use crate::kv::KvLayer;
use cenote_base::prng::Prng;

fn random(len: usize, prng: &mut Prng) -> Vec<f32> {
    (0..len).map(|_| prng.next_f64() as f32 * 2.0 - 1.0).collect()
}

/// A layer with NaN in unwritten memory, so that reading an invisible key or value changes the
/// result.
fn filled(layout: KvLayout, table: &[BlockId], tokens: usize, prng: &mut Prng) -> (KvLayer, Vec<f32>, Vec<f32>) {
    let mut layer = KvLayer::new(layout, 16);
    layer.poison();
    let width = layout.num_kv_heads * layout.head_dim;
    let (k, v) = (random(tokens * width, prng), random(tokens * width, prng));
    for position in 0..tokens {
        let row = position * width..(position + 1) * width;
        layer.write(table, position, &k[row.clone()], &v[row]);
    }
    (layer, k, v)
}

#[test]
fn attention_is_softmax_of_scores_times_values() {
    let mut prng = Prng::new(5);
    for (heads, num_kv_heads, head_dim, block_tokens) in [(4, 2, 16, 16), (3, 3, 8, 16), (8, 1, 24, 32), (6, 2, 64, 16)]
    {
        for element in [ElementType::F32, ElementType::Bf16] {
            let layout = KvLayout { num_layers: 1, num_kv_heads, head_dim, block_tokens, element };
            let table: Vec<BlockId> = vec![7, 2, 9, 4, 11, 1, 13, 15, 3, 5, 6, 8];
            let tokens = 150;
            let (layer, k, v) = filled(layout, &table, tokens, &mut prng);
            let width = heads * head_dim;
            let q = random(tokens * width, &mut prng);
            let mut out = vec![f32::NAN; tokens * width];
            let chunk = QueryChunk { first_row: 0, rows: tokens, start_position: 0, pages: ChunkPages::All(&table) };
            // In two parts of the KV heads.
            let half = num_kv_heads / 2;
            for of in [0..half, half..num_kv_heads] {
                attend(layer.view(), &q, width, heads, of, &[chunk], &mut out);
            }
            let tolerance = if element == ElementType::F32 { 1e-5 } else { 2e-2 };
            for (token, head) in (0..tokens).flat_map(|token| (0..heads).map(move |head| (token, head))) {
                let kv_head = head / (heads / num_kv_heads);
                let kv = |source: &[f32], key: usize, d: usize| {
                    f64::from(source[(key * num_kv_heads + kv_head) * head_dim + d])
                };
                let query = &q[token * width + head * head_dim..][..head_dim];
                let terms: Vec<f64> = (0..=token)
                    .map(|key| {
                        let score: f64 = (0..head_dim).map(|d| f64::from(query[d]) * kv(&k, key, d)).sum();
                        (score / (head_dim as f64).sqrt()).exp()
                    })
                    .collect();
                let sum: f64 = terms.iter().sum();
                for d in 0..head_dim {
                    let want = terms.iter().enumerate().map(|(key, term)| term * kv(&v, key, d)).sum::<f64>() / sum;
                    let got = f64::from(out[token * width + head * head_dim + d]);
                    assert!((got - want).abs() < tolerance, "token {token} head {head} dim {d}: {got} {want}");
                }
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_chunks_or_neighbours() {
    let mut prng = Prng::new(6);
    for element in [ElementType::F32, ElementType::Bf16] {
        let layout = KvLayout { num_layers: 1, num_kv_heads: 2, head_dim: 24, block_tokens: 16, element };
        let (heads, tokens, width) = (8, 139, 8 * 24);
        let table: Vec<BlockId> = (0..9).rev().collect();
        let (layer, ..) = filled(layout, &table, tokens, &mut prng);
        let q = random(tokens * width, &mut prng);
        let run = |cuts: &[usize]| {
            let mut out = vec![f32::NAN; tokens * width];
            let mut chunks = Vec::new();
            let mut first_row = 0;
            for &until in cuts.iter().chain([&tokens]) {
                let rows = until - first_row;
                chunks.push(QueryChunk { first_row, rows, start_position: first_row, pages: ChunkPages::All(&table) });
                first_row = until;
            }
            attend(layer.view(), &q, width, heads, 0..layout.num_kv_heads, &chunks, &mut out);
            out
        };
        let whole = run(&[]);
        assert!(whole.iter().all(|value| value.is_finite()));
        assert_eq!(whole, run(&[1, 2, 17, 64, 65, 138]));
        assert_eq!(whole, run(&(1..tokens).collect::<Vec<_>>()));
    }
}

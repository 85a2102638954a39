//! Tables of models' folders, by the names of the published checkpoints.

use crate::support::*;
use cenote_engram::{NgramConfig, layer_hashes};
use cenote_mem::Flush;
use cenote_tables::checkpoint::{model_tables, tensor_table};
use cenote_tables::{LoadOptions, Opening, RowSource, Table, load};
use safetensors::tensor::Dtype;
use std::path::Path;

/// A small DeepSeek configuration, and the rows of its tables.
fn deepseek(folder: &Path, values: usize) -> Vec<u64> {
    let config = |rows: &[u64]| {
        let rows: Vec<String> = rows.iter().map(u64::to_string).collect();
        format!(
            r#"{{"text_config": {{"engram_layer_ids": [1, 14], "engram_num_embeddings": [{}],
            "engram_max_ngram_size": 3, "engram_n_heads": 2, "engram_head_dim": {values},
            "engram_vocab_size": 100, "engram_compressed_vocab_size": 50, "engram_pad_token_id": 2}}}}"#,
            rows.join(", ")
        )
    };
    let first = NgramConfig::parse(config(&[100_000, 100_000]).as_bytes()).unwrap();
    let rows: Vec<u64> = layer_hashes(&first).unwrap().iter().map(|layer| layer.rows).collect();
    std::fs::write(folder.join("config.json"), config(&rows)).unwrap();
    rows
}

#[test]
fn deepseeks_values_and_scales_are_rows() {
    let folder = tempfile::tempdir().unwrap();
    let rows = deepseek(folder.path(), 64);
    let tensors: Vec<(Vec<u8>, Vec<u8>)> = (0..)
        .zip(&rows)
        .map(|(at, &rows)| (random_bytes(rows as usize * 64, at), random_bytes(rows as usize * 2, at + 10)))
        .collect();
    // One layer in each file, with the prefixes of the published files and of vLLM.
    let names = [
        ["layers.1.engram.embed.weight", "layers.1.engram.embed.scale"],
        ["model.layers.14.engram.embed_tokens.weight", "model.layers.14.engram.embed_tokens.weight_scale_inv"],
    ];
    for (at, [values, scales]) in names.into_iter().enumerate() {
        let count = rows[at] as usize;
        let tensors = [
            (values, Dtype::F8_E4M3, vec![count, 64], &*tensors[at].0),
            (scales, Dtype::F8_E8M0, vec![count, 2], &*tensors[at].1),
            ("layers.1.attn.weight", Dtype::F32, vec![1], &[0; 4]),
        ];
        write(&folder.path().join(format!("model-{at}.safetensors")), &tensors);
    }
    let tables = model_tables(folder.path()).unwrap();
    let region = Region::new("deepseek", 8 << 20, 256 << 10, Flush::None);
    let pool = region.attach(0);
    for (at, table) in tables.iter().enumerate() {
        let facts = table.rows.facts();
        assert_eq!(
            (table.layer, &*facts.format, facts.row_bytes, facts.rows),
            ([1, 14][at], "e4m3-ue8m0", 66, rows[at])
        );
        let name = format!("t{at}");
        load(&pool, &name, &table.rows, &LoadOptions::waiting(patience())).unwrap();
        let opened = Table::open(&pool, &name, Opening::Verified).unwrap();
        let mut got = vec![0; 66 * rows[at] as usize];
        opened.gather(&(0..rows[at]).collect::<Vec<_>>(), &mut got).unwrap();
        for (row, got) in got.chunks(66).enumerate() {
            assert_eq!(got[..64], tensors[at].0[row * 64..][..64], "values of row {row}");
            assert_eq!(got[64..], tensors[at].1[row * 2..][..2], "scales of row {row}");
        }
    }
}

/// Scales in f32 passed as four scale bytes each, so rows had other values.
#[test]
fn scales_of_another_type_or_width_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t");
    let bytes = random_bytes(100 * 256, 1);
    write(
        &file,
        &[
            ("values", Dtype::F8_E4M3, vec![100, 256], &bytes),
            ("f32", Dtype::F32, vec![100, 2], &bytes[..800]),
            ("i8", Dtype::I8, vec![100, 8], &bytes[..800]),
            ("few", Dtype::F8_E8M0, vec![100, 4], &bytes[..400]),
            ("many", Dtype::U8, vec![100, 16], &bytes[..1600]),
            ("e8m0", Dtype::F8_E8M0, vec![100, 8], &bytes[..800]),
            ("u8", Dtype::U8, vec![100, 8], &bytes[..800]),
        ],
    );
    let table = |scales| tensor_table(&file, "values", Some(scales), None);
    for (scales, words) in [("f32", "F32"), ("i8", "I8"), ("few", "4 scales"), ("many", "16 scales")] {
        let error = table(scales).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
    for scales in ["e8m0", "u8"] {
        assert_eq!(table(scales).unwrap().facts().row_bytes, 264, "{scales}");
    }
}

#[test]
fn tables_of_other_sizes_and_missing_parts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let rows = deepseek(folder.path(), 64);
    let file = folder.path().join("model.safetensors");
    let refused = |words: &str| {
        let error = model_tables(folder.path()).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    };
    let bytes = random_bytes(rows[0] as usize * 64 * 2, 1);
    let (whole, less) = (rows[0] as usize, rows[0] as usize - 1);
    let values = "layers.1.engram.embed.weight";
    write(&file, &[("other", Dtype::BF16, vec![1, 64], &bytes[..128])]);
    refused("no file has the values of layer 1's table");
    write(&file, &[(values, Dtype::BF16, vec![less, 64], &bytes[..less * 128])]);
    refused("and the files have");
    write(&file, &[(values, Dtype::BF16, vec![whole * 2, 32], &bytes)]);
    refused("rows of 32");
    write(&file, &[(values, Dtype::F8_E4M3, vec![whole, 64], &bytes[..whole * 64])]);
    refused("no file has the scales of layer 1's table");
    let scales = "layers.1.engram.embed.scale";
    write(
        &file,
        &[
            (values, Dtype::F8_E4M3, vec![whole, 64], &bytes[..whole * 64]),
            (scales, Dtype::F8_E8M0, vec![less, 2], &bytes[..less * 2]),
        ],
    );
    refused("different numbers of rows");
    write(&file, &[(values, Dtype::I32, vec![whole, 32], &bytes[..whole * 128])]);
    refused("are not known");
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    refused("config.json");
}

/// A small Qwen configuration in `parts` parts, and the padded rows of its table.
fn qwen(folder: &Path, parts: u64) -> u64 {
    let config = format!(
        r#"{{"ple_layer_ids": [2], "ple_embed_dim": 64, "ngram_size": 3, "heads_per_ngram": 2,
        "ngram_vocab_size_base": 200, "make_ngram_vocab_size_divisible_by": 128, "seed": 1234,
        "split_ngram_parts": {parts}, "vocab_size": 1000, "eos_token_id": 7}}"#
    );
    std::fs::write(folder.join("config.json"), &config).unwrap();
    let parsed = NgramConfig::parse(config.as_bytes()).unwrap();
    layer_hashes(&parsed).unwrap()[0].padded_rows
}

#[test]
fn qwens_shards_are_one_table() {
    let folder = tempfile::tempdir().unwrap();
    let rows = qwen(folder.path(), 5) as usize;
    // 4 heads share 64 values, so a row has 16.
    let bytes = random_bytes(rows * 16, 3);
    let per = rows.div_ceil(5);
    for (shard, bytes) in bytes.chunks(per * 16).enumerate() {
        let name = format!("model.language_model.layers.1.ple.ngram_embedding.ngram_embedding.shard_{shard}.weight");
        write(
            &folder.path().join(format!("{shard}.safetensors")),
            &[(&name, Dtype::F8_E4M3, vec![bytes.len() / 16, 16], bytes)],
        );
    }
    let refused = model_tables(folder.path()).err().unwrap().to_string();
    assert!(refused.contains("scale of layer 2's table"), "{refused}");
    let scale = "model.language_model.layers.1.ple.ngram_embedding.ngram_embedding.weight_scale";
    write(&folder.path().join("scale.safetensors"), &[(scale, Dtype::F32, vec![1], &0.25f32.to_le_bytes())]);
    let tables = model_tables(folder.path()).unwrap();
    let facts = tables[0].rows.facts();
    assert_eq!((tables.len(), tables[0].layer, facts.rows, facts.row_bytes), (1, 2, rows as u64, 16));
    assert_eq!((&*facts.format, facts.scale, facts.source.len()), ("e4m3", Some(0.25), 5));
    let region = Region::new("qwen", 4 << 20, 64 << 10, Flush::None);
    let pool = region.attach(0);
    load(&pool, "q", &tables[0].rows, &LoadOptions::waiting(patience())).unwrap();
    let table = Table::open(&pool, "q", Opening::Verified).unwrap();
    let mut got = vec![0; bytes.len()];
    table.gather(&(0..rows as u64).collect::<Vec<_>>(), &mut got).unwrap();
    assert!(got == bytes);

    std::fs::remove_file(folder.path().join("3.safetensors")).unwrap();
    let refused = model_tables(folder.path()).err().unwrap().to_string();
    assert!(refused.contains("shard 3 of 5"), "{refused}");
}

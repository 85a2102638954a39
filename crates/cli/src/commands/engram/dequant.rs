//! `cenote engram dequant`: stored rows to bf16.

use super::read_json;
use crate::args::EngramDequantArgs;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_engram::RowFormat;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Values of a row that the table shows.
const SHOWN: usize = 4;

#[derive(Deserialize)]
struct Input {
    rows: Vec<String>,
}

#[derive(Serialize)]
struct Output {
    /// Little-endian words in hexadecimal.
    bf16: Vec<String>,
}

pub fn run(args: &EngramDequantArgs) -> Result<(), Failure> {
    let format = RowFormat::new(args.format, args.scale)
        .map_err(|error| Failure::new(error.to_string()).hint("--scale gives the scale of a table"))?;
    let input: Input = read_json(&args.rows)?;
    let mut rows = Vec::new();
    for (at, text) in input.rows.iter().enumerate() {
        let wrong = |what: String| Failure::new(format!("{}: row {at}: {what}", args.rows.display()));
        let row = bytes(text).map_err(wrong)?;
        let values = format.stored().row_values(row.len()).map_err(|error| wrong(error.to_string()))?;
        let mut out = vec![0; values];
        format.to_bf16(&row, &mut out).map_err(|error| wrong(error.to_string()))?;
        rows.push(out);
    }
    let output = Output { bf16: rows.iter().map(|row| hex(row)).collect() };
    args.output.show(&output, || table(&rows))
}

fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let digits: Option<Vec<u8>> = text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.ok_or_else(|| "not hexadecimal".to_owned())?;
    if digits.len() % 2 != 0 {
        return Err(format!("{} digits are no whole bytes", digits.len()));
    }
    Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn hex(row: &[u16]) -> String {
    row.iter().flat_map(|value| value.to_le_bytes()).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn table(rows: &[Vec<u16>]) -> String {
    let mut table = output::table(&["row", "values", "first values"]);
    for (at, row) in rows.iter().enumerate() {
        let first: Vec<String> =
            row.iter().take(SHOWN).map(|bits| f32::from_bits(u32::from(*bits) << 16).to_string()).collect();
        table.add_row([at.to_string(), row.len().to_string(), first.join(", ")]);
    }
    table.to_string()
}

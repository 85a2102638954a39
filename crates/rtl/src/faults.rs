// Shared with build.rs, which cannot name the crate. No module comment, because it is included.

/// A deliberate fault: in `file`, the expression `right` becomes `wrong`.
pub struct Fault {
    /// File name of the module.
    pub file: &'static str,
    /// The expression, which occurs once.
    pub right: &'static str,
    /// The expression in its place.
    pub wrong: &'static str,
    /// The check that must fail.
    pub check: &'static str,
}

const fn fault(check: &'static str, file: &'static str, right: &'static str, wrong: &'static str) -> Fault {
    Fault { file, right, wrong, check }
}

/// All faults; the number of one is its index and 1.
pub const FAULTS: &[Fault] = &[
    fault("compact", "compact.sv", "comes ? data[k][(i+(1<<k))*W+:W] : data[k][i*W+:W]", "data[k][i*W+:W]"),
    fault("compact", "compact.sv", "C'(N) - first_drops", "C'(N) - first_drops - 1'b1"),
    fault("byte_pack", "byte_pack.sv", "b_valid && b_last && b_total > 7'd64", "b_valid && b_last && b_total >= 7'd64"),
    fault("byte_pack", "byte_pack.sv", "(b_total >= 7'd64) ? joined[1023:512] : joined[511:0]", "joined[511:0]"),
    fault("byte_pack", "byte_pack.sv", "s_last ? 6'd0 : place + s_count[5:0]", "place + s_count[5:0]"),
    fault("speckv_forged", "byte_unpack.sv", "!last && !(s_valid && s_ready && s_last)", "!last"),
    fault("speckv_encode", "page_fifo.sv", "tags > 3'd1 || !(m_valid && m_last)", "1'b1"),
    fault("speckv_encode", "page_fifo.sv", "fresh || m_last", "fresh"),
    fault("float", "fmul.sv", "guard && (sticky || normal[P-24])", "guard"),
    fault("float", "fmul.sv", "product[P-1] ? product : product << 1", "product"),
    fault("float", "fadd.sv", "normal[3] && (normal[4] || |normal[2:0])", "normal[3]"),
    fault("float", "fadd.sv", "{wide[50:25], |wide[24:0]}", "wide[50:24]"),
    fault("float", "fadd.sv", "(gap > 10'd27) ? 5'd27 : gap[4:0]", "gap[4:0]"),
    fault("float", "fdiv.sv", "quotient[1] || rest != 25'd0", "quotient[1]"),
    fault("float", "to_int.sv", "fixed[23] && (fixed[24] || |fixed[22:0])", "fixed[23]"),
    fault("float", "to_f16.sv", "shifted[24] || inexact", "inexact"),
    fault("float", "to_f16.sv", "exponent < -10'sd25", "exponent < -10'sd24"),
    fault("float", "from_f16.sv", "-10'sd15 - {6'd0, zeros}", "-10'sd14 - {6'd0, zeros}"),
    fault("speckv_encode", "page_max.sv", "left > right", "left < right"),
    fault("speckv_encode", "page_max.sv", "6'(i) < s_count", "1'b1"),
    fault("speckv_encode", "page_max.sv", "m_last ? 15'd0 : page_best", "page_best"),
    fault("speckv_encode", "scale.sv", "9'd127", "9'd126"),
    fault("speckv_encode", "row_start.sv", "distance + dim - 16'd32", "distance + dim - 16'd31"),
    fault("speckv_encode", "delta_enc.sv", "(has_start && lane == 5'(i)) ? 8'd0 : left", "left"),
    fault("speckv_encode", "run_mark.sv", "!goes_on || run == 8'd0", "!goes_on"),
    fault("speckv_encode", "run_mark.sv", "here == 6'(i + 1) ? carry : 8'd0", "8'd0"),
    fault("speckv_encode", "run_mark.sv", "!last && next_is_zero", "next_is_zero"),
    fault("speckv_encode", "run_mark.sv", "last ? 8'd0 : run_at_end", "run_at_end"),
    fault("speckv_encode", "run_count.sv", "b_last ? '0 : byte_sum + {25'd0, b_bytes}", "byte_sum + {25'd0, b_bytes}"),
    fault("speckv_encode", "speckv_encode.sv", "run_bytes < values", "run_bytes <= values + 32'd40"),
    fault("speckv_encode", "run_emit.sv", "runs ? 8'd2 : 8'd1", "8'd2"),
    fault("speckv_decode", "delta_dec.sv", "a_cut[i] ? 8'd0 : carry", "carry"),
    fault("speckv_decode", "delta_dec.sv", "g_row[k-1].cut[i] || g_row[k-1].cut[i-(1<<(k-1))]", "g_row[k-1].cut[i]"),
    fault("speckv_decode", "run_parse.sv", "used & ~is_length & ~zero", "used & ~zero"),
    fault("speckv_forged", "run_parse.sv", "!s_last && marker_behind[31]", "marker_behind[31]"),
    fault("speckv_decode", "run_parse.sv", "b_last ? 5'd0 : fill + b_sums[31*14+:5]", "fill + b_sums[31*14+:5]"),
    fault("speckv_forged", "run_expand.sv", "(ends_page && cut)", "1'b0"),
    fault("speckv_forged", "run_expand.sv", "behind != {9'd0, start}", "1'b0"),
    fault("speckv_decode", "run_expand.sv", "here == left && left <= 32'd32", "here == left"),
    fault("speckv_forged", "speckv_decode.sv", "new_scale[31] && new_scale[30:0] != 31'd0", "new_scale[31]"),
    fault("speckv_forged", "speckv_decode.sv", "new_scale[30:23] == 8'd255", "1'b0"),
    fault("atu", "atu.sv", "page == a_address[38:12]", "page[26:1] == a_address[38:13]"),
    fault("atu", "atu.sv", "walk_done && !walk_fault && oldest == A'(i)", "walk_done && oldest == A'(i)"),
    fault("atu", "atu.sv", "!r_entry[0] || level == 2'd2", "level == 2'd2"),
    fault("dma_read", "dma_read.sv", "used != 5'd16", "1'b1"),
    fault("dma_read", "dma_read.sv", "last && left == 16'd1", "left == 16'd1"),
    fault("dma_write", "dma_write.sv", "open + {4'd0, moves} - {4'd0, b_valid}", "open + {4'd0, moves}"),
    fault("wrr_weights", "wrr_weights.sv", "9'd256 - alpha", "9'd255 - alpha"),
    fault("channel_front", "wrr_pick.sv", "renew ? weights : credits", "weights"),
    fault("channel_front", "channel_front.sv", "line[3:0] ^ line[7:4] ^ line[11:8]", "line[3:0]"),
    fault("qpack_decode", "qpack_width.sv", "22'd190651", "22'd190650"),
    fault("qpack_encode", "qpack_width.sv", "8'd90", "8'd91"),
    fault("qpack_encode", "qpack_channel_enc.sv", "used[6][i] ? code : 9'd0", "code"),
    fault("qpack_encode", "qpack_channel_enc.sv", "10'(most_8) < high", "10'(most_8) <= high"),
    fault("qpack_encode", "qpack_encode.sv", "!g_last && g_bad", "g_bad"),
    fault("qpack_decode", "qpack_channel_dec.sv", "as_stored | 16'h0200", "as_stored"),
    fault("qpack_decode", "qpack_channel_dec.sv", "{2'd0, center_3}", "{2'd0, center_3} + 9'd1"),
    fault("qpack_decode", "qpack_decode.sv", "is_last_pair && is_last_group && (!ends || avail > need)", "1'b0"),
    fault("oaken_encode", "to_f16_bounds.sv", "x[34] ? -outer : inner", "x[34] ? -inner : inner"),
    fault("oaken_encode", "oaken_grid.sv", "fixed[30:24] + {6'd0, |fixed[23:0]}", "fixed[30:24]"),
    fault("oaken_encode", "oaken_code_lane.sv", "(nearest < low_end) ? nearest : low_end", "nearest"),
    fault(
        "oaken_encode",
        "oaken_encode.sv",
        "{odd[i], code_group == 2'd2, halves[7], 5'(i)}",
        "{odd[i], 1'b0, halves[7], 5'(i)}",
    ),
    fault("oaken_encode", "oaken_bounds.sv", "next_least > next_most", "1'b0"),
    fault("oaken_decode", "oaken_insert.sv", "7'(i) < count", "7'(i) <= count"),
    fault("oaken_decode", "oaken_decode.sv", "page_ends && (!ends || avail > count)", "1'b0"),
    fault("speckv_engine", "keep_count.sv", "7'(i + 1)", "7'(i)"),
    fault("speckv_engine", "axi_lite_regs.sv", "aw_valid && w_valid && !b_valid", "aw_valid && !b_valid"),
    fault("speckv_engine", "slice.sv", "spare_valid ? spare : s_data", "s_data"),
];

// QPack's decoder: two channels of sixteen tokens in a beat. Its input is the payload of a frame of
// crates/codec/src/qpack.rs.
//
// Interface: beats of 64 bytes with a count in, the last of a page marked; means and steps of a
// beat's two channels as singles in a second stream, in the order of the output; beats of 32
// halves or bfloats (`bf16`) out, in the order of key panels. `m_error` in the last beat: the payload has not the
// length that its widths demand, and the page is undefined; then the second stream may have words
// of the page left. `page_ends` is a pulse when the page's last word was taken, or should be dropped.
// `dim`, even and at most 128, `groups`, the heads times sixteens of tokens, and `bf16` stay while
// pages are inside.
// Latency 14 cycles from the beat with a group's indices. Initiation interval 1; a group takes its
// beats and one cycle.
module qpack_decode (
    input  logic         clk,
    input  logic         rst,
    input  logic         bf16,
    input  logic [15:0]  dim,
    input  logic [15:0]  groups,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [6:0]   s_count,
    input  logic         s_last,
    input  logic         p_valid,
    output logic         p_ready,
    input  logic [63:0]  p_means,
    input  logic [63:0]  p_steps,
    output logic         page_ends,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic         m_last,
    output logic         m_error
);
  localparam int Stages = 12;

  logic [511:0] window;
  logic [6:0] avail, take;
  logic ends, more, drop;
  byte_unpack unpack (
      .clk,
      .rst,
      .s_valid,
      .s_ready,
      .s_data,
      .s_count,
      .s_last,
      .window,
      .avail,
      .ends,
      .more,
      .take,
      .drop
  );

  // A group's indices, of which the lowest byte is next, then its pairs of channels.
  logic body, en, go, fails, is_last_pair, is_last_group;
  logic [511:0] indices;
  logic [6:0] index_bytes, left;
  logic [15:0] group;
  logic [5:0] count_a, count_b;
  logic [6:0] need;
  logic [7:0] unused_levels_a, unused_levels_b;
  logic [6:0] unused_center_a, unused_center_b;
  logic [21:0] unused_inverse_a, unused_inverse_b;

  qpack_width width_a (
      .index(indices[3:0]),
      .bytes(count_a),
      .levels(unused_levels_a),
      .center(unused_center_a),
      .inverse(unused_inverse_a)
  );
  qpack_width width_b (
      .index(indices[7:4]),
      .bytes(count_b),
      .levels(unused_levels_b),
      .center(unused_center_b),
      .inverse(unused_inverse_b)
  );
  assign index_bytes = dim[7:1];
  assign need = body ? {1'b0, count_a} + {1'b0, count_b} : index_bytes;
  assign is_last_pair = body && left == 7'd1;
  assign is_last_group = group == groups - 16'd1;

  // Too few bytes, or bytes behind the last code. The page's end must be known with its last pair.
  logic enough, known, too_few, too_many;
  // Without a page, nothing is enough, also where a width or `dim` needs no bytes.
  assign enough = avail >= need && (avail != 7'd0 || ends);
  assign known = !(is_last_pair && is_last_group) || ends || more || avail > need;
  assign too_few = ends && !enough;
  assign too_many = is_last_pair && is_last_group && (!ends || avail > need);
  assign fails = too_few || (enough && known && too_many);
  assign go = too_few || (enough && known && (!body || p_valid));
  assign p_ready = en && body && enough && known && !too_few;

  always_comb begin
    take = (go && en && !fails) ? need : '0;
    drop = go && en && (fails || (is_last_pair && is_last_group));
  end

  assign page_ends = drop;

  logic a_valid, a_last, a_error;
  logic [255:0] a_low, a_high;
  logic [7:0] a_indices;
  logic [73:0] a_means, a_steps;

  for (genvar c = 0; c < 2; c++) begin : g_open
    from_f32 open_mean (
        .single(p_means[c*32+:32]),
        .open(a_means[c*37+:37])
    );
    from_f32 open_step (
        .single(p_steps[c*32+:32]),
        .open(a_steps[c*37+:37])
    );
  end

  logic [73:0] a_means_q, a_steps_q;
  assign en = !m_valid || m_ready;

  always_ff @(posedge clk) begin
    if (en) begin
      a_valid <= go && (body || fails);
      a_last <= fails || (is_last_pair && is_last_group);
      a_error <= fails;
      a_low <= window[255:0];
      a_high <= 256'(window >> {count_a, 3'd0});
      a_indices <= indices[7:0];
      a_means_q <= a_means;
      a_steps_q <= a_steps;
      if (go && !body) begin
        indices <= window;
        left <= index_bytes;
        body <= 1'b1;
      end else if (go) begin
        indices <= indices >> 8;
        left <= left - 7'd1;
        if (is_last_pair) begin
          body  <= 1'b0;
          group <= group + 16'd1;
        end
      end
      if (drop) begin
        body  <= 1'b0;
        group <= '0;
      end
    end
    if (rst) begin
      body <= 1'b0;
      group <= '0;
      a_valid <= 1'b0;
    end
  end

  for (genvar c = 0; c < 2; c++) begin : g_channel
    qpack_channel_dec channel (
        .clk,
        .en,
        .bf16,
        .s_bytes((c == 0) ? a_low : a_high),
        .s_index(a_indices[c*4+:4]),
        .s_mean(a_means_q[c*37+:37]),
        .s_step(a_steps_q[c*37+:37]),
        .m_data(m_data[c*256+:256])
    );
  end

  logic [Stages-2:0] valid, lasts, errors;
  always_ff @(posedge clk) begin
    if (en) begin
      valid  <= {valid[Stages-3:0], a_valid};
      lasts  <= {lasts[Stages-3:0], a_last};
      errors <= {errors[Stages-3:0], a_error};
    end
    if (rst) valid <= '0;
  end
  assign m_valid = valid[Stages-2];
  assign m_last  = lasts[Stages-2];
  assign m_error = errors[Stages-2];

  logic unused;
  assign unused = ^{dim[15:8], dim[0]};
endmodule

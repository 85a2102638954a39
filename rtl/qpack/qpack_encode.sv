// QPack's encoder: two channels of sixteen tokens in a beat. Its output is the payload of a frame
// of crates/codec/src/qpack.rs.
//
// A group is a head's channels for up to sixteen tokens. Its width indices come before its codes,
// so a group is stored until its last channel.
//
// Interface: beats of 32 halves or bfloats (`bf16`) in, in the order of key panels, `[head][token / 16][channel]
// [token % 16]`, with the group's number of tokens and marks of the last beat of a group and of
// the page; means and inverse steps of the beat's two channels as singles in a second stream.
// Beats of 64 bytes with a count out. `m_bad` in the last beat: the page has values that are not
// finite, and its bytes mean nothing. A head has an even number of channels, at most 128.
// Latency 19 cycles and one for each beat of the first group. Initiation interval 1; a group takes
// its beats and one cycle.
module qpack_encode (
    input  logic         clk,
    input  logic         rst,
    input  logic         bf16,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [4:0]   s_tokens,
    input  logic         s_end,
    input  logic         s_last,
    input  logic         p_valid,
    output logic         p_ready,
    input  logic [63:0]  p_means,
    input  logic [63:0]  p_inverses,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic [6:0]   m_count,
    output logic         m_last,
    output logic         m_bad
);
  localparam int Stages = 11;

  logic en, both, c_valid, c_ready, room;
  assign both = s_valid && p_valid;
  assign s_ready = en && p_valid;
  assign p_ready = en && s_valid;

  // Both channels of a beat.
  logic [511:0] bytes;
  logic [11:0] counts;
  logic [7:0] indices;
  logic [1:0] bads;
  for (genvar c = 0; c < 2; c++) begin : g_channel
    logic [36:0] mean, inverse;
    from_f32 open_mean (
        .single(p_means[c*32+:32]),
        .open(mean)
    );
    from_f32 open_inverse (
        .single(p_inverses[c*32+:32]),
        .open(inverse)
    );
    qpack_channel_enc channel (
        .clk,
        .en,
        .bf16,
        .s_data(s_data[c*256+:256]),
        .s_tokens,
        .s_mean(mean),
        .s_inverse(inverse),
        .m_bytes(bytes[c*256+:256]),
        .m_count(counts[c*6+:6]),
        .m_index(indices[c*4+:4]),
        .m_bad(bads[c])
    );
  end

  logic [Stages-1:0] valid, ends, lasts;
  always_ff @(posedge clk) begin
    if (en) begin
      valid <= {valid[Stages-2:0], both};
      ends  <= {ends[Stages-2:0], s_end};
      lasts <= {lasts[Stages-2:0], s_last};
    end
    if (rst) valid <= '0;
  end

  // Both channels' bytes as one chunk, and the group's indices.
  logic j_valid, j_end, j_last, j_bad;
  logic [511:0] joined, indices_so_far, group_indices;
  logic [6:0] j_count, index_bytes, group_index_bytes;
  logic [7:0] j_indices;

  assign en = (!j_valid || room) && !(c_valid && !c_ready);

  always_ff @(posedge clk) begin
    if (en) begin
      j_valid <= valid[Stages-1];
      joined <= {256'd0, bytes[255:0]} | ({256'd0, bytes[511:256]} << {counts[5:0], 3'd0});
      j_count <= {1'b0, counts[5:0]} + {1'b0, counts[11:6]};
      j_indices <= indices;
      j_end <= ends[Stages-1];
      j_last <= lasts[Stages-1];
      j_bad <= |bads;
    end
    if (c_valid && c_ready) c_valid <= 1'b0;
    if (j_valid && room && en) begin
      indices_so_far <= j_end ? '0 : indices_so_far | ({504'd0, j_indices} << {index_bytes[5:0], 3'd0});
      index_bytes <= j_end ? '0 : index_bytes + 7'd1;
      if (j_end) begin
        c_valid <= 1'b1;
        group_indices <= indices_so_far | ({504'd0, j_indices} << {index_bytes[5:0], 3'd0});
        group_index_bytes <= index_bytes + 7'd1;
      end
    end
    if (rst) begin
      j_valid <= 1'b0;
      c_valid <= 1'b0;
      indices_so_far <= '0;
      index_bytes <= '0;
    end
  end

  logic g_valid, g_ready, g_first, g_end, g_last, g_bad, g_beat_bad;
  logic [511:0] g_data, g_indices;
  logic [6:0] g_count, g_index_bytes;

  page_fifo #(
      .W(521),
      .DEPTH(128),
      .T(519)
  ) group (
      .clk,
      .rst,
      .s_valid(j_valid && en),
      .s_ready(room),
      .s_data({j_bad, j_last, j_count, joined}),
      .s_last(j_end),
      .c_valid,
      .c_ready,
      .c_tag({group_index_bytes, group_indices}),
      .m_valid(g_valid),
      .m_ready(g_ready),
      .m_data({g_beat_bad, g_last, g_count, g_data}),
      .m_first(g_first),
      .m_last(g_end),
      .m_tag({g_index_bytes, g_indices})
  );

  // Indices first, then codes.
  logic titled, title, pack_ready, page_bad;
  assign title = g_first && !titled;
  assign g_ready = pack_ready && !title;
  assign g_bad = page_bad || g_beat_bad;

  always_ff @(posedge clk) begin
    if (g_valid && pack_ready) begin
      titled <= title || (titled && !g_end);
      if (!title) page_bad <= !g_last && g_bad;
    end
    if (rst) begin
      titled <= 1'b0;
      page_bad <= 1'b0;
    end
  end

  byte_pack joiner (
      .clk,
      .rst,
      .s_valid(g_valid),
      .s_ready(pack_ready),
      .s_data(title ? g_indices : g_data),
      .s_count(title ? g_index_bytes : g_count),
      .s_last(g_last && !title),
      .s_user(g_bad),
      .m_valid,
      .m_ready,
      .m_data,
      .m_count,
      .m_last,
      .m_user(m_bad)
  );
endmodule

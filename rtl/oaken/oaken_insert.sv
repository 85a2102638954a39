// Zero-insert shifter: gives each channel of half a block the entry of its outlier, and zeros to
// the others (Oaken §5.2, Figure 9b).
//
// Entries of an encoder have different places. Of two entries for one place, as only a forged
// payload has them, the later one counts; so halves of the list are merged in six levels.
//
// Interface: combinational. Up to 64 entries of a block in; for each of 32 channels out whether it
// is an outlier, its group's bit and its fifth bit.
module oaken_insert (
    input  logic [511:0] entries,
    input  logic [6:0]   count,
    input  logic         half,
    output logic [31:0]  outlier,
    output logic [31:0]  inner,
    output logic [31:0]  fifth
);
  // Row k holds, for 2^k entries each, the places and the bits of all 64 channels.
  for (genvar k = 0; k <= 6; k++) begin : g_row
    logic [(64>>k)*64-1:0] places, inners, fifths;
    for (genvar i = 0; i < (64 >> k); i++) begin : g_merge
      if (k == 0) begin : g_entry
        assign places[i*64+:64] = (7'(i) < count) ? 64'd1 << entries[i*8+:6] : 64'd0;
        assign inners[i*64+:64] = entries[i*8+6] ? places[i*64+:64] : 64'd0;
        assign fifths[i*64+:64] = entries[i*8+7] ? places[i*64+:64] : 64'd0;
      end else begin : g_two
        logic [63:0] later;
        assign later = g_row[k-1].places[(2*i+1)*64+:64];
        assign places[i*64+:64] = g_row[k-1].places[2*i*64+:64] | later;
        assign inners[i*64+:64] = (g_row[k-1].inners[2*i*64+:64] & ~later) | g_row[k-1].inners[(2*i+1)*64+:64];
        assign fifths[i*64+:64] = (g_row[k-1].fifths[2*i*64+:64] & ~later) | g_row[k-1].fifths[(2*i+1)*64+:64];
      end
    end
  end
  assign outlier = half ? g_row[6].places[63:32] : g_row[6].places[31:0];
  assign inner = half ? g_row[6].inners[63:32] : g_row[6].inners[31:0];
  assign fifth = half ? g_row[6].fifths[63:32] : g_row[6].fifths[31:0];
endmodule

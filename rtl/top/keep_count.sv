// Number of valid bytes of an AXI-Stream beat, from its byte mask, whose ones are the lowest.
//
// Interface: combinational.
module keep_count (
    input  logic [63:0] keep,
    output logic [6:0]  count
);
  always_comb begin
    count = 7'd0;
    for (int i = 0; i < 64; i++) if (keep[i]) count = 7'(i + 1);
  end
endmodule

// Number of zeros above the highest one of a word; W if there is no one.
//
// Interface: combinational.
module lead_zeros #(
    parameter int W = 24
) (
    input  logic [W-1:0]         x,
    output logic [$clog2(W+1)-1:0] count
);
  always_comb begin
    count = ($clog2(W + 1))'(W);
    for (int i = 0; i < W; i++) if (x[i]) count = ($clog2(W + 1))'(W - 1 - i);
  end
endmodule

// Inclusive prefix sums of N numbers of W bits, modulo 2^W, in log2(N) levels of adders.
//
// Interface: combinational; sums[i] = parts[0] + … + parts[i].
module prefix_sum #(
    parameter int N = 64,
    parameter int W = 7
) (
    input  logic [N*W-1:0] parts,
    output logic [N*W-1:0] sums
);
  localparam int LEVELS = $clog2(N);

  for (genvar k = 0; k <= LEVELS; k++) begin : g_level
    logic [N*W-1:0] row;
    if (k == 0) begin : g_in
      assign row = parts;
    end else begin : g_add
      for (genvar i = 0; i < N; i++) begin : g_lane
        if (i >= (1 << (k - 1))) begin : g_two
          assign row[i*W+:W] = g_level[k-1].row[i*W+:W] + g_level[k-1].row[(i-(1<<(k-1)))*W+:W];
        end else begin : g_one
          assign row[i*W+:W] = g_level[k-1].row[i*W+:W];
        end
      end
    end
  end

  assign sums = g_level[LEVELS].row;
endmodule

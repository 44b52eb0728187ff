"""Four kernels, each tuned from nothing by droplet, then beside torch: eager channels-last and pre-packed, fused."""

from __future__ import annotations

import sys
import time

from common import bars, machine, save

import stormdrop as sd

KERNELS = {
    "conv 3x3 64, 56x56": ("conv2d", dict(n=1, h=56, w=56, ci=64, co=64, kh=3, kw=3, pad=1), "torch", 1.10),
    "conv 3x3 256, 14x14": ("conv2d", dict(n=1, h=14, w=14, ci=256, co=256, kh=3, kw=3, pad=1), "torch", 1.10),
    "matmul 512": ("matmul", dict(m=512, n=512, k=512), "torch", 0.95),
    "conv 1x1 1024-512, 17x17": ("conv2d", dict(n=1, h=17, w=17, ci=1024, co=512, kh=1, kw=1), "torch-packed", 0.85),
}
BUDGET = 15.0  # seconds of tuning each


def main() -> None:
    where = machine()
    print(f"{where['cpu']}, {where['cores']} cores, peak {where['peak_gflops']:.0f} GFLOP/s, {where['versions']}")
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    results = []
    for name, (operator, arguments, peer, wanted) in KERNELS.items():
        workload = getattr(sd.operators, operator)(**arguments)
        with sd.open_store("sqlite://") as store:
            tuned = sd.tune(
                workload, search="droplet", fresh=True, time=BUDGET, store=store, started=time.perf_counter()
            ).to_json()
            bench = sd.bench(workload, ["torch"], rounds=rounds, store=store).to_json()
        ours = {each["name"]: each for each in bench["contenders"]}
        ratio, (low, high) = ours[peer]["ratio"], ours[peer]["ratio_interval"]
        requests = sum(tuned["statuses"].values())
        print(
            f"\n{name}: {tuned['seconds']:.1f} s of tuning, {tuned['trials']} candidates "
            f"({tuned['trials'] / tuned['seconds']:.1f}/s), {requests} measurements, "
            f"{tuned['suspect']} suspect, converged {tuned['converged']}"
        )
        print("  " + ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in tuned["phases"].items()))
        print(f"  {tuned['best']['percent_of_peak']:.0f}% of peak; {tuned['best']['sketch']} {tuned['best']['config']}")
        for each in bench["contenders"]:
            print(f"  {each['name']:<14}{each['gflops']:>6.0f} GFLOP/s, {each['ratio']:.3f} of our time")
        print(f"  {peer} takes {ratio:.3f} ({low:.3f} to {high:.3f}) of our time; wanted {wanted}")
        results.append({"name": name, "wanted": wanted, "peer": peer, "ratio": ratio, "tuned": tuned, "bench": bench})
    print(f"\n{save('kernels', {'machine': where, 'results': results})}")
    contenders = [each["name"] for each in results[0]["bench"]["contenders"]]
    series = {
        who: [
            next((each["gflops"] for each in entry["bench"]["contenders"] if each["name"] == who), 0.0)
            for entry in results
        ]
        for who in contenders
    }
    series["measured peak"] = [where["peak_gflops"]] * len(results)
    print(
        bars("kernels", f"float32 kernels on {where['cpu']}", "GFLOP/s", [entry["name"] for entry in results], series)
    )


if __name__ == "__main__":
    main()

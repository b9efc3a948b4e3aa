package apiserver

import (
	"testing"

	"github.com/google/cel-go/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// TestCostlyQuantitiesInExpressions evaluates what takes hours where a quantity's digits are calculated, as a rule and
// as a policy would, of values that an object has and of its own.
func TestCostlyQuantitiesInExpressions(t *testing.T) {
	if err := boundExpressions(); err != nil {
		t.Fatal(err)
	}
	set := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	for name, env := range map[string]*cel.Env{"new": set.NewExpressionsEnv(), "stored": set.StoredExpressionsEnv()} {
		for _, c := range []struct {
			text, x string
			want    any // nil: an error
		}{
			{"quantity(x).isLessThan(quantity('1'))", "1e-999999999", nil},
			{"quantity(x).isLessThan(quantity('1'))", "1E999999999", nil},
			{"quantity('1e-99999' + x).isLessThan(quantity('1'))", "9999", nil},
			{"isQuantity(x)", "1e-999999999", false},
			{"quantity('1e-999999999').isInteger()", "", nil},
			{"quantity(x).isInteger()", "nonsense", nil},
			{"isQuantity(x)", "nonsense", false},
			{"isQuantity(x)", "1.5Gi", true},
			{"quantity(x).add(quantity('500m')).compareTo(quantity('2'))", "1500m", int64(0)},
			{"quantity(x).isGreaterThan(quantity('1e3'))", "1e20", true},
		} {
			extended, err := env.Extend(cel.Variable("x", cel.StringType))
			if err != nil {
				t.Fatal(err)
			}
			ast, issues := extended.Compile(c.text)
			if issues.Err() != nil {
				t.Fatalf("%s: %s: %v", name, c.text, issues.Err())
			}
			var got any
			program, err := extended.Program(ast, cel.EvalOptions(cel.OptOptimize))
			if err == nil {
				value, _, everr := program.Eval(map[string]any{"x": c.x})
				if err = everr; err == nil {
					got = value.Value()
				}
			}
			if got != c.want || (err == nil) != (c.want != nil) {
				t.Errorf("%s: %s with %q: %v, %v; want %v", name, c.text, c.x, got, err, c.want)
			}
		}
	}
}

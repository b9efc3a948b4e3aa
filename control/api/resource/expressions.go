package resource

import (
	"github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"

	"github.com/berth-node/berth/internal/quantity"
)

// requests holds the expressions of a claim to their rules.
func requests(c *resourcev1.DeviceClaim, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range c.Requests {
		r, at := &c.Requests[i], path.Child("requests").Index(i)
		if r.Exactly != nil {
			errs = append(errs, selectors(r.Exactly.Selectors, at.Child("exactly", "selectors"))...)
		}
		for j := range r.FirstAvailable {
			errs = append(errs, selectors(r.FirstAvailable[j].Selectors, at.Child("firstAvailable").Index(j).Child("selectors"))...)
		}
	}
	return errs
}

// selectors holds expressions that select devices to their rules: they can be compiled, and cost no more than the
// scheduler gives them. There may be as many in a claim as the tags of its type allow.
func selectors(all []resourcev1.DeviceSelector, path *field.Path) field.ErrorList {
	if len(all) > resourcev1.DeviceSelectorsMaxSize {
		return nil // which is said elsewhere
	}
	var errs field.ErrorList
	for i := range all {
		if all[i].CEL != nil {
			errs = append(errs, expression(all[i].CEL.Expression, path.Index(i).Child("cel", "expression"))...)
		}
	}
	return errs
}

func expression(text string, path *field.Path) field.ErrorList {
	if len(text) > resourcev1.CELSelectorExpressionMaxLength {
		return field.ErrorList{field.TooLong(path, "", resourcev1.CELSelectorExpressionMaxLength)}
	}
	kind := environment.NewExpressions
	compiled := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true}).CompileCELExpression(text, dracel.Options{EnvType: &kind})
	switch {
	case compiled.Error != nil:
		return field.ErrorList{field.Invalid(path, text, compiled.Error.Detail)}
	case compiled.MaxCost > resourcev1.CELSelectorExpressionMaxCost:
		return field.ErrorList{field.Forbidden(path, "too complex, exceeds cost limit")}
	case !calculable(compiled.Environment, text):
		return field.ErrorList{field.Invalid(path, text, "quantities must be written as such, of at most 64 digits and with an exponent from -99 to 99, or be attributes of the device")}
	}
	return nil
}

// calculable says whether all quantities of an expression are read in a moment. What 1e-999999999 costs nobody
// estimates, and nothing ends it once it is calculated: the scheduler would come to its end by it. A text that is put
// together may be such a number, too.
func calculable(env *cel.Env, text string) bool {
	parsed, issues := env.Parse(text)
	if issues != nil && issues.Err() != nil {
		return false
	}
	fine := true
	dynamic, shadowed := false, false
	celast.PostOrderVisit(parsed.NativeRep().Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		switch e.Kind() {
		case celast.CallKind:
			call := e.AsCall()
			if name := call.FunctionName(); name != "quantity" && name != "isQuantity" || len(call.Args()) != 1 {
				return
			}
			arg := call.Args()[0]
			if number, is := literal(arg); is {
				fine = fine && !quantity.Costly(number)
				return
			}
			dynamic = true
			fine = fine && ofDevice(arg)
		case celast.ComprehensionKind:
			c := e.AsComprehension()
			shadowed = shadowed || c.IterVar() == device || c.IterVar2() == device || c.AccuVar() == device
		}
	}))
	return fine && !(dynamic && shadowed)
}

// device is the variable that an expression is about.
const device = "device"

func literal(e celast.Expr) (string, bool) {
	if e.Kind() != celast.LiteralKind {
		return "", false
	}
	text, is := e.AsLiteral().Value().(string)
	return text, is
}

// ofDevice says whether an expression is a value of the device itself, which its driver has given it.
func ofDevice(e celast.Expr) bool {
	switch e.Kind() {
	case celast.IdentKind:
		return e.AsIdent() == device
	case celast.SelectKind:
		return !e.AsSelect().IsTestOnly() && ofDevice(e.AsSelect().Operand())
	case celast.CallKind:
		call := e.AsCall()
		return call.FunctionName() == operators.Index && len(call.Args()) == 2 && ofDevice(call.Args()[0])
	}
	return false
}

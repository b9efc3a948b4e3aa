package admissionregistration

import (
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	v1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/berth-node/berth/control/api/check"
)

const maxMatchConditions = 64

// expressions are those that were accepted before: an older version of the API may have known functions that this one
// lets nobody newly use, and the other way round.
type expressions struct{ all sets.Set[string] }

func (e *expressions) add(text string) {
	if e.all == nil {
		e.all = sets.New[string]()
	}
	e.all.Insert(text)
}

// base is what all expressions are compiled against: making it takes milliseconds.
var base = sync.OnceValue(func() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
})

var plain = sync.OnceValue(func() plugincel.Compiler { return plugincel.NewCompiler(base()) })

// compiler compiles the expressions of one object.
type compiler struct {
	known expressions
	// with has the variables of a policy; nil is without.
	with   plugincel.Compiler
	params bool
	patch  bool
}

// accessor is an expression and what it may come to.
type accessor struct {
	text  string
	types []*cel.Type
}

func (a accessor) GetExpression() string    { return a.text }
func (a accessor) ReturnTypes() []*cel.Type { return a.types }

func (c compiler) check(text string, path *field.Path, types ...*cel.Type) field.ErrorList {
	with := c.with
	if with == nil {
		with = plain()
	}
	mode := environment.NewExpressions
	if c.known.all.Has(text) {
		mode = environment.StoredExpressions
	}
	options := plugincel.OptionalVariableDeclarations{HasParams: c.params, HasAuthorizer: true, HasPatchTypes: c.patch}
	r := with.CompileCELExpression(accessor{text, types}, options, mode)
	if r.Error == nil {
		return nil
	}
	if r.Error.Type == "RequiredError" {
		return field.ErrorList{field.Required(path, r.Error.Detail)}
	}
	return field.ErrorList{field.Invalid(path, text, r.Error.Error())}
}

func matchConditions(all []v1.MatchCondition, c compiler, _ bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(all) > maxMatchConditions {
		errs = append(errs, field.TooMany(path, len(all), maxMatchConditions))
	}
	seen := sets.New[string]()
	for i, m := range all {
		at := path.Index(i)
		if strings.TrimSpace(m.Expression) == "" {
			errs = append(errs, field.Required(at.Child("expression"), ""))
		} else {
			errs = append(errs, c.check(m.Expression, at.Child("expression"), cel.BoolType)...)
		}
		if m.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
			continue
		}
		errs = append(errs, check.Invalid(at.Child("name"), m.Name, validation.IsQualifiedName(m.Name))...)
		if seen.Has(m.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), m.Name))
		}
		seen.Insert(m.Name)
	}
	return errs
}

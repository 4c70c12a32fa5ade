import numpy as np, scipy.stats as st, json, scipy
rng=np.random.default_rng(7)
out={"scipy":scipy.__version__}
x=np.round(rng.lognormal(0,0.6,24),4); out["skewed"]=x.tolist()
def bca(x,f):
    r=st.bootstrap((x,),f,n_resamples=400000,confidence_level=0.95,method="BCa",random_state=np.random.default_rng(1),batch=20000)
    return [float(r.confidence_interval.low),float(r.confidence_interval.high)]
out["bca_mean"]=bca(x,np.mean); out["bca_median"]=bca(x,np.median)
out["quantiles"]={str(q):float(np.quantile(x,q)) for q in (0,.1,.25,.5,.9,.99,1)}
out["cv"]=float(np.std(x,ddof=1)/np.mean(x))
d=np.round(rng.normal(0.25,0.6,12),4); out["differences"]=d.tolist()
r=st.permutation_test((d,),lambda v,axis:np.sum(v,axis=axis),permutation_type="samples",vectorized=True,n_resamples=np.inf,alternative="two-sided")
out["sign_flip_exact"]=float(r.pvalue)
d2=np.round(rng.normal(0.15,0.6,20),4); out["differences20"]=d2.tolist()
r=st.permutation_test((d2,),lambda v,axis:np.sum(v,axis=axis),permutation_type="samples",vectorized=True,n_resamples=np.inf,alternative="two-sided",batch=50000)
out["sign_flip_exact20"]=float(r.pvalue)
X=np.array([0,1,2,5,9,10,20,50,100.]); Y=np.round(3+0.4*X+rng.normal(0,0.5,9),4); Y[3]=40
t=st.theilslopes(Y,X,method="joint"); out["line"]={"x":X.tolist(),"y":Y.tolist(),"b":float(t.slope),"a":float(t.intercept)}
print(json.dumps(out,indent=1))

# Prints testdata/pool.json: random effects by Paule and Mandel with intervals by Hartung, Knapp, Sidik and Jonkman, from scipy alone. The first case are the
# 13 trials of the BCG vaccine, with which the R package metafor is tested: rma(yi, vi, method="PM", test="knha") says tau^2 = 0.318.
import numpy as np, scipy.stats as st, scipy.optimize as op, json, scipy
def pool(y,v):
    y,v=np.array(y),np.array(v); n=len(y)
    mean=lambda t: np.sum(y/(v+t))/np.sum(1/(v+t))
    q=lambda t: np.sum((y-mean(t))**2/(v+t))-(n-1)
    t=op.brentq(q,0,100*np.var(y,ddof=1)+1,xtol=1e-15,rtol=1e-14) if q(0)>0 else 0.
    se=np.sqrt(np.sum((y-mean(t))**2/(v+t))/(n-1)/np.sum(1/(v+t)))
    ci=lambda level: [float(x) for x in st.t.interval(level,n-1,mean(t),se)]
    return {"y":y.tolist(),"v":v.tolist(),"mean":float(mean(t)),"se":float(se),"between":float(t),"share":float(t/(t+np.mean(v))),
            "interval":ci(.95),"within":ci(.9),"p":float(2*st.t.sf(abs(mean(t)/se),n-1))}
bcg=([-0.8893,-1.5854,-1.3481,-1.4416,-0.2175,-0.7861,-1.6209,0.0120,-0.4694,-1.3713,-0.3394,0.4459,-0.0173],
     [0.3256,0.1946,0.4154,0.0200,0.0512,0.0069,0.2230,0.0040,0.0564,0.0730,0.0124,0.5325,0.0714])
rng=np.random.default_rng(11)
cases=[pool(*bcg)]
for k in (2,3,5,8):
    for between in (0,.02,.2):
        v=np.round(rng.uniform(.0004,.002,k),6)
        cases.append(pool(np.round(.1+between*rng.normal(size=k)+np.sqrt(v)*rng.normal(size=k),6),v))
cases.append(pool([.1,.1,.1001],[.001,.002,.001]))
tails=[{"t":t,"df":df,"p":float(2*st.t.sf(t,df))} for t in (0.,.1,1.,2.5,12.7,200.) for df in (1,2,4,7,19,60)]
quantiles=[{"share":a,"df":df,"t":float(st.t.isf(a/2,df))} for a in (.5,.1,.05,.001) for df in (1,2,4,7,19)]
print(json.dumps({"scipy":scipy.__version__,"cases":cases,"tails":tails,"quantiles":quantiles},indent=1))
